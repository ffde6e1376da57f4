"""What `orch doctor` is told of a host, where a program there answers oddly."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.host import survey

SMI = """#!/bin/sh
echo 'Warning: persistence mode is off'
echo 'Warning, with, three, commas'
echo '0, NVIDIA H200, 143771, 550.54.15'
echo '1, NVIDIA GB10, [N/A], 550.54.15'
"""


def test_a_line_of_nvidia_smi_that_is_no_gpu_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = survey.look(str(tmp_path), None)["nvidia"]
    assert [(gpu["index"], gpu["memory_mb"]) for gpu in found["gpus"]] == [(0, 143_771), (1, 0)]
    assert found["driver"] == "550.54.15"
