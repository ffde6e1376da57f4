"""The table of a host's tasks by itself, with real processes: what it costs when there are many."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker import contract
from worker.host import processes
from worker.host.loop import Loop
from worker.host.relay import Relay
from worker.host.tasks import TaskTable

COUNT = 12


class Frames(list[Any]):
    """Takes what the table tells the controller."""

    is_full = False

    def send(self, frame: Any, data: bytes = b"") -> None:
        self.append(frame)


@pytest.fixture
def told() -> Frames:
    return Frames()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each look at our children. None is shown: this process is pytest, and has daemons of other tests, not to be swept."""
    found: list[int] = []
    monkeypatch.setattr(processes, "_children", lambda: found.append(1) or [])
    return found


@pytest.fixture
def table(told: Any, tmp_path: Path, looks: list[int]) -> Iterator[TaskTable]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = Loop()
    relay = Relay(loop, told)
    found = TaskTable(loop, told, relay, lambda order: None, lambda: None)
    found.run_id, found.root = "run", str(tmp_path)
    program = contract.Program("command", "true")
    names = [f"worker-{index}" for index in range(COUNT)]
    found.start(contract.StartTasks(tuple(contract.TaskOrder(name, 1, program, str(tmp_path), name) for name in names)))
    yield found
    found.reap()
    found.close()
    relay.close()
    loop._selector.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def wait_for_ends(told: Frames) -> None:
    """Without taking them in."""
    for frame in told:
        if isinstance(frame, contract.Started):
            os.waitid(os.P_PID, frame.pid, os.WEXITED | os.WNOWAIT)


def test_all_that_have_ended_are_swept_with_one_look_at_our_children(table: TaskTable, told: Frames, looks: list[int]) -> None:
    wait_for_ends(told)
    table.reap()
    assert len([frame for frame in told if isinstance(frame, contract.Swept)]) == COUNT
    assert looks == [1]
    assert not table


def test_whether_a_task_runs_is_known_without_a_look_at_all(table: TaskTable, told: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unread(dict[int, Any]):
        def values(self) -> Any:
            raise AssertionError("all tasks are looked at for one of them")

    with monkeypatch.context() as patch:
        patch.setattr(table, "_tasks", Unread(table._tasks))
        assert [table.is_running(f"worker-{index}") for index in (0, COUNT - 1, COUNT)] == [True, True, False]
    wait_for_ends(told)
    table.reap()
    assert not table.is_running("worker-0")
