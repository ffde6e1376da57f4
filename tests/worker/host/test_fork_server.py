"""The agent's end of a template by itself; `test_template.py` has it with real agents and templates."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.live import room_for
from worker.directory import Directory
from worker.host.loop import Loop
from worker.host.tasks.log_files import TaskOutput
from worker.host.tasks.task import PendingTask
from worker.host.template.fork_server import ForkServer, Preload, TemplateProcess
from worker.protocol import messages


class LauncherDouble:
    """Notes which tasks were refused, and why."""

    limits = (0, 0)

    def __init__(self) -> None:
        self.refused: list[tuple[PendingTask, str]] = []

    def on_refused(self, task: PendingTask, why: str) -> None:
        self.refused.append((task, why))


def pending_task(name: str, directory: Path) -> PendingTask:
    program = messages.Program("serve")
    order = messages.TaskOrder(name, 1, program, str(directory), name)
    bootstrap = messages.BootstrapOrder(name, program, None, str(directory))
    return PendingTask(order, TaskOutput(name, 1, Directory(str(directory)), ""), {"TZ": "UTC", "ORCH_TASK": name}, bootstrap)


def test_pending_tasks_are_compared_by_identity(tmp_path: Path) -> None:
    """Each holds a whole environment, and is looked for among all."""
    one, other = pending_task("worker-0", tmp_path), pending_task("worker-0", tmp_path)
    assert one != other


@pytest.mark.parametrize("more", range(3))
def test_too_many_open_files_cost_a_fork_and_not_the_host(tmp_path: Path, more: int) -> None:
    loop = Loop()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher: Any = LauncherDouble()
    task = pending_task("worker-0", tmp_path)
    with control, theirs:
        server = ForkServer(loop, launcher, Preload(("json",), {}, str(tmp_path), str(tmp_path)), "log", TemplateProcess(0, -1, control))
        server.ready = True
        before = len(os.listdir("/proc/self/fd"))
        with room_for(more):
            server.fork(task)
            assert launcher.refused == [(task, "the template cannot be asked: Too many open files")]
        assert len(os.listdir("/proc/self/fd")) == before
        loop.forget(control)
    loop._selector.close()
