"""What a survivor keeps, without TensorFlow: the steps, the files and the memory that is left are given."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from worker.checkpoint_files import snapshot_memory
from worker.checkpoint_files.snapshot_memory import Memory
from worker.machine import free_memory
from worker.task import save_orders
from worker.task.checkpoints import variables, world_facts
from worker.task.snapshots import snapshots
from worker.task.snapshots.survivors import Survivor

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are of Linux")

STEP = 4


class Gate:
    """`steps`: what the counters say, one call after the other; the last one again and again."""

    def __init__(self, *steps: int) -> None:
        self.why, self.changed, self.steps = "", set[str](), list(steps)

    has_new = False

    def refuse(self, why: str) -> None:
        self.why = why

    def read(self) -> tuple[int, int]:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        return step, STEP

    def close(self) -> None:
        pass


@pytest.fixture
def path() -> Iterator[str]:
    fd = os.memfd_create("test")
    yield f"/proc/{os.getpid()}/fd/{fd}"
    os.close(fd)


def survivor(path: str, gate: Gate, document: Any = lambda: ({}, {})) -> Any:
    made: Any = object.__new__(Survivor)
    made._gate, made._memory, made._lock, made._is_closed = gate, Memory([path]), threading.Lock(), False
    made._at, made._parts = (STEP, document, {}), []
    made._series = type("Series", (), {"facts": staticmethod(dict)})
    return made


def save(of: Any) -> None:
    of.keep(writes=True, note=lambda found, tensors: b'{"name": "%s"}\n' % found["name"].encode() + tensors, may=lambda: True)


def test_the_last_step_is_kept(path: str) -> None:
    kept = survivor(path, Gate(STEP))
    save(kept)
    (found,) = snapshot_memory.read([path])
    assert found.note["name"].endswith(str(STEP))
    kept.close()


@pytest.mark.parametrize(("before", "why"), [(STEP - 1, ""), (STEP - 4, "several steps run in one call")])
def test_several_steps_in_one_call_are_refused(path: str, before: int, why: str) -> None:
    """Nearly always the survivors stand in the middle of a call, and have the weights of no step that is over."""
    kept = survivor(path, gate := Gate(STEP))
    kept._last, kept._is_proved = before, True
    assert kept._look(STEP) == gate.why
    assert gate.why.startswith(why)
    assert bool(gate.why) == bool(why)
    kept.close()


def test_a_step_that_the_next_one_changes_meanwhile_is_never_whole(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may be killed at any moment, so it is not enough to take a wrong one back."""
    monkeypatch.setattr("worker.task.snapshots.survivors.PATIENCE_S", 0.1)
    headers: list[int] = []
    real = snapshot_memory._pack
    monkeypatch.setattr(snapshot_memory, "_pack", lambda *args: (headers.append(args[0]), real(*args))[1])
    kept = survivor(path, Gate(STEP, STEP + 1))
    save(kept)
    assert snapshot_memory.read([path]) == []
    assert headers == []
    kept.close()


def test_the_file_is_not_closed_while_a_thread_writes_to_it(path: str) -> None:
    """The next file that the program opens would get its number."""
    begun, goes_on = threading.Event(), threading.Event()

    def document() -> tuple[dict[str, Any], dict[str, Any]]:
        begun.set()
        goes_on.wait(30)
        return {}, {}

    kept = survivor(path, Gate(STEP), document)
    keeps, closes = threading.Thread(target=save, args=(kept,)), threading.Thread(target=kept.close)
    keeps.start()
    assert begun.wait(30)
    closes.start()
    closes.join(0.1)
    assert kept._memory._fds
    goes_on.set()
    for each in (keeps, closes):
        each.join(30)
    assert not kept._memory._fds
    save(kept)  # the training is over: nothing is written


@pytest.mark.parametrize(
    ("free", "others", "is_possible", "layers"),
    [
        (300, [], True, (True, True)),
        (299, [], True, (True, False)),
        (299, [], False, (True, True)),  # there is no third copy, so no room is needed for it
        (199, [], True, (False, False)),
        (300, [[1, 0, 100]], True, (True, False)),  # another host has no room for the third
        (300, [[0, 1, 100]], True, (False, False)),
    ],
)
def test_a_third_copy_that_has_no_room_leaves_the_snapshots(
    monkeypatch: pytest.MonkeyPatch, free: int, others: list[list[int]], is_possible: bool, layers: tuple[bool, bool]
) -> None:
    refused: list[str] = []
    off: list[str] = []
    made: Any = object.__new__(snapshots.TrainingSnapshots)
    made._named, made._holds, made._memory = list, True, object()
    made._series = type("Series", (), {"strategy": None})
    made._survivor = type("Kept", (), {"is_possible": staticmethod(lambda step: is_possible), "refuse": staticmethod(refused.append)})
    made._turn_off = off.append
    monkeypatch.setattr(save_orders, "keep_by", lambda keep: None)
    monkeypatch.setattr(free_memory, "bytes_left", lambda: int(free / snapshots.MEMORY_SHARE))
    monkeypatch.setattr(variables, "bytes_of", lambda named: 100)
    monkeypatch.setattr(world_facts, "gather", lambda strategy, *values: [list(values), *others])
    made._begin(1)
    assert (not off, not off and not refused) == layers
