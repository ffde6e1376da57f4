"""The tasks of one host: started, ended, swept.

*Ended*: the task's first process is reaped; the controller is told at once, without waiting for anything.
*Swept*: whatever it left behind (children in its group, or in sessions of their own) is gone as well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .. import contract
from . import environment, processes
from .link import Link
from .loop import Loop
from .output import TaskOutput
from .relay import Relay

SWEEP_LOOK_S = 0.02
SWEEP_GRACE_S = 1.0
"""How long what a task left behind may take to end after SIGTERM."""
SWEEP_GIVE_UP_S = 5.0
_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "task", "start.py")


@dataclass(slots=True)
class HostTask:
    """One attempt of one task, from its start until nothing of it is left."""

    order: contract.TaskOrder
    pid: int
    lifeline: int
    output: TaskOutput
    stopped: bool = False
    ended: bool = False
    kill_at: float | None = None
    sweep_by: float = 0.0


class TaskTable:
    """All tasks that are not swept yet, by the pid of their first process, which is also their group."""

    def __init__(self, loop: Loop, link: Link, relay: Relay, on_empty: Callable[[], None]) -> None:
        self._loop, self._link, self._relay, self._on_empty = loop, link, relay, on_empty
        self._limits = processes.allow_many_files()
        self._env = dict(os.environ)
        self._tasks: dict[int, HostTask] = {}
        self.run_id = ""
        self.root = ""

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def is_running(self, name: str) -> bool:
        return any(task.order.task == name and not task.ended for task in self._tasks.values())

    def start(self, start: contract.StartTasks, order: contract.TaskOrder) -> bool:
        """Start one task and tell the controller; False if it could not be started."""
        output = TaskOutput(order.task, order.attempt, os.path.join(self.root, order.log_dir))
        try:
            os.makedirs(output.directory, mode=0o700, exist_ok=True)
            command = self._command(start, order, output)
            try:
                self._relay.add(output)
                pid, lifeline = processes.spawn(command, self._limits)
            finally:
                if command.order_fd is not None:
                    os.close(command.order_fd)
        except (processes.SpawnError, OSError, KeyError) as error:
            self._link.send(contract.NotStarted(order.task, order.attempt, str(error), time.time()))
            return False
        self._tasks[pid] = HostTask(order, pid, lifeline, output)
        self._link.send(contract.Started(order.task, order.attempt, pid, time.time()))
        return True

    def stop(self, grace_s: float, names: Collection[str] | None = None) -> None:
        """SIGTERM now and SIGKILL after `grace_s`, for all tasks or those named. Asked again: the earlier end counts."""
        for task in list(self._tasks.values()):
            if names is None or task.order.task in names:
                self._stop(task, grace_s)

    def reap(self) -> None:
        """Take in every process that has ended: tasks, and what they left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            task = self._tasks.get(pid)
            if task is not None and not task.ended:
                self._end(task, status)
        for task in [task for task in self._tasks.values() if task.ended]:
            self._sweep(task)

    def _command(self, start: contract.StartTasks, order: contract.TaskOrder, output: TaskOutput) -> processes.Command:
        tf_config = environment.tf_config_of(start, order)
        env = environment.compose(self._env, start, order, output.directory, tf_config)
        streams = output.path("stdout"), output.path("stderr")
        program = order.program
        if program.kind == "command":
            return processes.Command((program.target, *program.args), order.cwd, env, *streams)
        told = contract.BootstrapOrder(order.task, program, order.strategy, tf_config, order.devices, output.directory)
        # The last two words are only there to be read in `ps`; the user's arguments may hold secrets and are not.
        argv = (sys.executable, _BOOTSTRAP, "{fd}", order.task, program.target or program.kind)
        return processes.Command(argv, order.cwd, env, *streams, order_fd=_keep(json.dumps(contract.to_json(told)).encode("ascii")))

    def _stop(self, task: HostTask, grace_s: float) -> None:
        task.stopped = True
        if task.kill_at is None and grace_s > 0 and not task.ended:
            processes.signal_group(task.pid, signal.SIGTERM)
        kill_at = time.monotonic() + grace_s
        if task.kill_at is None or kill_at < task.kill_at:
            task.kill_at = kill_at
            self._loop.after(grace_s, lambda: self._kill_overdue(task))

    def _kill_overdue(self, task: HostTask) -> None:
        if task.pid in self._tasks:
            processes.signal_group(task.pid, signal.SIGKILL)
            if task.ended:
                self._sweep(task)

    def _end(self, task: HostTask, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        task.ended = True
        task.sweep_by = time.monotonic() + SWEEP_GRACE_S
        self._relay.announce(task.output)
        exited = contract.Exited(
            task.order.task,
            task.order.attempt,
            code if code >= 0 else 128 - code,
            time.time(),
            task.stopped,
            task.output.sizes(),
            _read_failure(task.output.directory),
        )
        self._link.send(exited)
        processes.signal_group(task.pid, signal.SIGTERM)

    def _sweep(self, task: HostTask) -> None:
        """End what an ended task has left behind; forget the task when nothing is left."""
        if task.pid not in self._tasks:
            return
        marks = (f"ORCH_RUN_ID={self.run_id}", f"ORCH_TASK={task.order.task}")
        strays = processes.find_strays(marks, set(self._tasks))
        empty = processes.group_is_empty(task.pid)
        now = time.monotonic()
        overdue = now >= task.sweep_by or (task.kill_at is not None and now >= task.kill_at)
        for pid in strays:
            processes.signal_one(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        if overdue and not empty:
            processes.signal_group(task.pid, signal.SIGKILL)
        if (empty and not strays) or now >= task.sweep_by + SWEEP_GIVE_UP_S:
            self._forget(task)
        else:
            self._loop.after(SWEEP_LOOK_S, lambda: self._sweep(task))

    def _forget(self, task: HostTask) -> None:
        del self._tasks[task.pid]
        os.close(task.lifeline)
        self._relay.remove(task.output)
        self._link.send(contract.Swept(task.order.task, task.order.attempt, task.output.sizes()))
        if task.output.truncated:
            text = f"{task.order.task} cut its own log short: it opened /dev/stdout or /dev/stderr anew (use >&1, >>, or tee -a)"
            self._link.send(contract.Trouble("note", text, time.time()))
        if not self._tasks:
            self._on_empty()


def _keep(data: bytes) -> int:
    """A descriptor that reads as `data`, for orders of any length, which no pipe would hold."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("orch-order")
    else:
        with tempfile.TemporaryFile(prefix="orch-") as file:
            fd = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_failure(directory: str) -> contract.Failure | None:
    try:
        with open(os.path.join(directory, "error.json"), encoding="utf-8", errors="surrogateescape") as file:
            return contract.from_json(contract.Failure, json.load(file))
    except (OSError, ValueError):
        return None
