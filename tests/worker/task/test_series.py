"""The saves that several workers write together. The workers are threads of one process, without TensorFlow."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from worker.formats import saves, tensor_file
from worker.formats.saves import LOCAL
from worker.task.checkpoints import series, world_facts
from worker.task.checkpoints.series import Place, Series
from worker.task.patches import import_hooks

NAME = "loop-1"


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(world_facts, "world", lambda strategy, workers: {"workers": workers, "replicas": len(workers)})
    before = set(import_hooks._printed)
    yield
    import_hooks._printed.clear()
    import_hooks._printed.update(before)


def worker(base: Path, index: int, *, count: int = 2, resume: tuple[Path, ...] = ()) -> Series:
    task: Any = SimpleNamespace(task=f"worker-{index}", run_id="run", attempt=1)
    made = Series(Place(str(base), tuple(map(str, resume)), 3, task), NAME, None)
    made.chief, made.workers = "worker-0", [f"worker-{each}" for each in range(count)]
    return made


def write(of: Series, step: int, value: float, kind: str = "") -> None:
    document = {"epoch": 0, "step_in_epoch": step, "input": {"epoch": 0, "batch": step}}
    of.write(step, [], document, kind=kind, arrays={"v": np.full(3, value, np.float32)})


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
    assert "is a checkpoint already, and none is overwritten" in capsys.readouterr().err


def save_together(base: Path, *steps: int, count: int = 2) -> None:
    workers = [worker(base, index, count=count) for index in reversed(range(count))]
    for step in steps:
        for each in workers:
            write(each, step, step)
    for each in workers:
        each.wait()


def choose_together(monkeypatch: pytest.MonkeyPatch, *workers: Series) -> list[Any]:
    """What each worker takes, in its own thread; an error in its place."""
    meeting, given = threading.Barrier(len(workers), timeout=60), dict[int, list[int]]()

    def gather(strategy: Any, *values: int) -> list[list[int]]:
        index = int(threading.current_thread().name)
        meeting.wait()
        given[index] = list(values)
        meeting.wait()
        return [given[each] for each in sorted(given)]

    monkeypatch.setattr("worker.task.input.given.of_all", gather)
    found: list[Any] = [None] * len(workers)

    def choose(index: int) -> None:
        try:
            found[index] = workers[index].choose()
        except RuntimeError as error:
            found[index] = error

    threads = [threading.Thread(target=choose, args=(index,), name=str(index)) for index in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("calls", range(11))
def test_a_chief_that_is_killed_in_a_save_leaves_the_save_before(tmp_path: Path, calls: int) -> None:
    """It is killed at each call of the kernel by which a file comes to the disk and gets its name. A restart takes the newest save that is
    whole, and removes what is not."""
    save_together(tmp_path, 10, count=1)

    def save() -> None:
        made: list[Any] = []

        def dies(function: Any) -> Any:
            def call(*args: Any) -> Any:
                if len(made) == calls:
                    os.kill(os.getpid(), signal.SIGKILL)
                made.append(function)
                return function(*args)

            return call

        os.fsync, os.replace = dies(os.fsync), dies(os.replace)
        save_together(tmp_path, 20, count=1)
        os.kill(os.getpid(), signal.SIGKILL)

    task = multiprocessing.get_context("fork").Process(target=save)
    task.start()
    task.join()
    assert task.exitcode == -signal.SIGKILL
    found = worker(tmp_path, 0, count=1).choose()
    assert found is not None
    steps = [10, 20] if calls > 8 else [10]  # the ninth call gives the manifest its name
    assert found.save.step == steps[-1]
    assert sorted(os.listdir(tmp_path / NAME)) == [saves.name_of(step) for step in steps]
    assert [saves.check(LOCAL, save) for save in saved(tmp_path)] == [""] * len(steps)


def test_the_newest_saves_and_the_end_of_a_training_stay(tmp_path: Path) -> None:
    chief = worker(tmp_path, 0, count=1)
    for step in (10, 20, 30, 40, 50, 60):
        write(chief, step, 1.0, "final" if step == 20 else "")
        chief.wait()
    assert [save.step for save in saved(tmp_path)] == [60, 50, 40, 20]


def test_a_damaged_file_in_the_only_save_begins_anew_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_together(tmp_path, 10)
    (save,) = saved(tmp_path)
    with (Path(save.directory) / "worker-0.safetensors").open("ab") as file:
        file.truncate(10)
    assert choose_together(monkeypatch, worker(tmp_path, 0), worker(tmp_path, 1)) == [None, None]
    said = capsys.readouterr().err
    assert "loop-1/step-0000000010 is damaged and stays aside: worker-0.safetensors" in said
    assert "nothing older is whole: the training begins again" in said

    save_together(tmp_path, 10)
    elsewhere = choose_together(monkeypatch, worker(tmp_path, 0), worker(tmp_path / "elsewhere", 1))
    assert "worker-1 finds no checkpoint in" in str(elsewhere[0])


def test_a_series_is_looked_for_in_all_runs_that_a_run_continues(tmp_path: Path) -> None:
    old, newer = tmp_path / "old", tmp_path / "newer"
    save_together(old, 10, count=1)
    newer.mkdir()
    (found,) = [worker(tmp_path / "now", 0, count=1, resume=(newer, old)).choose()]
    assert found is not None
    assert worker(tmp_path / "now", 0, count=1, resume=(newer,)).is_expected
    assert not worker(tmp_path / "now", 0).is_expected, "a training that begins at step 0 says nothing"
    assert found.save.directory.startswith(str(old))
    assert found.save.step == 10


def test_a_worker_that_cannot_write_says_so_to_the_chief(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / NAME / saves.name_of(10)
    (directory / "worker-1.safetensors.new").mkdir(parents=True)  # in the place of the file
    for each in (workers := [worker(tmp_path, index) for index in range(2)]):
        write(each, 10, 1.0)
    for each in workers:
        each.wait()
    said = capsys.readouterr().err
    assert (
        "loop-1/step-0000000010 is not saved: worker-1 could not write its file worker-1.safetensors; a line of worker-1 says why" in said
    )
    assert "loop-1/step-0000000010 is not saved: Is a directory" in said


def test_a_save_for_which_the_disk_has_no_room_leaves_none_of_it_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tensor_file.write

    def fill(file: Any, *args: Any) -> None:
        real(file, *args)
        if Path(file.name).name.startswith(saves.MODEL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensor_file, "write", fill)
    for each in (workers := [worker(tmp_path, index) for index in (1, 0)]):
        write(each, 10, 1.0)
        each.wait()
    assert "loop-1/step-0000000010 is not saved: No space left on device; the training goes on" in capsys.readouterr().err
    assert os.listdir(tmp_path / NAME / saves.name_of(10)) == ["worker-1.safetensors"], "a worker knows nothing of the chief's disk"
    monkeypatch.setattr(tensor_file, "write", real)
    for each in workers:
        write(each, 20, 2.0)
        each.wait()
    assert [save.step for save in saved(tmp_path)] == [20]


def test_a_save_whose_file_does_not_come_is_given_up_when_the_next_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(series, "LAST_PATIENCE_S", 0.1)
    workers = [worker(tmp_path, index) for index in range(2)]
    write(workers[0], 10, 1.0)
    for each in workers:
        write(each, 20, 2.0)
    for each in workers:
        each.wait()
    said = capsys.readouterr().err
    assert "loop-1/step-0000000010 waits for the file worker-1.safetensors of worker-1" in said
    assert "the file worker-1.safetensors of worker-1 did not come" in said
    assert [(save.step, saves.check(LOCAL, save)) for save in saved(tmp_path)] == [(20, "")], "what was given up is removed"


def test_steps_that_cannot_be_noted_do_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    for place in (tmp_path / "good", tmp_path / "file"):
        if place.name == "file":
            place.write_text("")
        chief = worker(place, 0)
        chief.reach(1)
        chief.reach(2)
        chief.wait()
    assert saves.reached(LOCAL, str(tmp_path / "good"), NAME) == 2
    said = f"the steps of loop-1 are not noted: Not a directory ({tmp_path / 'file' / NAME}); the training goes on"
    assert capsys.readouterr().err.count(said) == 1
    assert len(os.listdir("/proc/self/fd")) == open_files
