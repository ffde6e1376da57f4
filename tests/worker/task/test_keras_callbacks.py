"""The paths of callbacks in workers that are not the chief (worker/task/keras/callbacks.py); tests/real/ trains with them."""

from __future__ import annotations

import pytest

from worker.task import import_hooks
from worker.task.keras import callbacks


def test_a_replaced_path_is_told_once_however_many_fits_there_are(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_LOG_DIR", "/run/worker-1")
    monkeypatch.setenv("ORCH_TASK", "worker-1")
    monkeypatch.setattr(import_hooks, "_printed", set())
    for _ in range(2):
        assert callbacks._own("log.csv", "log.csv") == "/run/worker-1/log.csv"
    assert capfd.readouterr().err == "orch: log.csv is the chief's; this worker's is /run/worker-1/log.csv\n"
