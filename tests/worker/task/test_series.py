"""The saves that several workers write together. The workers are threads of one process, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from worker.checkpoint_files import saves
from worker.checkpoint_files.saves import LOCAL
from worker.task import import_hooks
from worker.task.checkpoints import world_facts
from worker.task.checkpoints.series import Place, Series

NAME = "loop-1"


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(world_facts, "world", lambda strategy, workers: {"workers": workers, "replicas": len(workers)})
    before = set(import_hooks._printed)
    yield
    import_hooks._printed.clear()
    import_hooks._printed.update(before)


def worker(base: Path, index: int, *, count: int = 2, resume: str = "", **given: Any) -> Series:
    """One of the workers of a cluster."""
    task: Any = SimpleNamespace(task=f"worker-{index}", run_id="run", attempt=1, **given)
    made = Series(Place(str(base), resume, 3, task), NAME, None)
    made.chief, made.workers = "worker-0", [f"worker-{each}" for each in range(count)]
    return made


def write(series: Series, step: int, value: float, kind: str = "") -> None:
    document = {"epoch": 0, "step_in_epoch": step, "input": {}}
    series.write(step, [], document, kind=kind, arrays={"v": np.full(3, value, np.float32)})


def saved(base: Path) -> list[saves.Save]:
    return list(saves.list_saves(LOCAL, str(base), NAME))


def test_a_second_save_of_a_step_leaves_the_first_one_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = [worker(tmp_path, index) for index in (1, 0)]
    for value in (1.0, 2.0):
        for each in workers:
            write(each, 100, value)
        for each in workers:
            each.wait()
    (save,) = saved(tmp_path)
    assert saves.check(LOCAL, save) == ""
    assert capsys.readouterr().err == "", "no worker tries it again"

    own = Path(save.directory) / "worker-1.safetensors"
    before = own.read_bytes()
    again = worker(tmp_path, 1)  # as after a restart
    again.place.task.attempt = 2
    write(again, 100, 3.0)
    again.wait()
    assert own.read_bytes() == before
    assert "is a save already, and no save is overwritten" in capsys.readouterr().err
