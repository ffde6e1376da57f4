"""Defines what the launcher knows of a task: before it has a process (`PendingTask`), and from then on (`StartedTask`)."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..formats import snapshot_memory
from ..machine.cpu_cores import cores_of
from ..machine.memfd import keep_in_memory
from ..protocol import messages
from ..protocol.task_environment import compose, tf_config_of
from ..protocol.task_id import PREPARE, TaskId
from ..values.codec import to_json
from ..values.fast_dataclass import dataclass
from .facts.program_files import directory_of
from .forkserver.template_link import ForkRequest
from .log_files import TaskOutput
from .processes.spawn import Command
from .task_stacks import Stacks

_BOOTSTRAP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../task/start_task.py"))


@dataclass(slots=True, eq=False)
class PendingTask:
    """One attempt of a task, from its order until it has a process, or is known to get none."""

    order: messages.TaskOrder
    output: TaskOutput
    env: Mapping[str, str]
    bootstrap: messages.BootstrapOrder
    """What the first code in the task reads, if the program is Python."""
    stop_after_s: float = math.inf
    """The grace in seconds of an order to stop that came before the task had a process; infinite: there was no such order."""

    @property
    def is_stopped(self) -> bool:
        return self.stop_after_s < math.inf

    @property
    def is_python(self) -> bool:
        """True if the program can be run by a fork of a template. Any other program is executed."""
        return self.order.program.kind != "command"

    def command(self) -> Command:
        """Return what to execute. The caller closes the command's `inherited_fd`. Raises OSError."""
        order, program = self.order, self.order.program
        streams = self.output.path("stdout"), self.output.path("stderr")
        if not self.is_python:
            return Command((program.target, *program.args), order.cwd, self.env, *streams, devices=self._devices())
        # The last two words are there to be read in `ps`. The user's arguments are left out: they may hold secrets.
        argv = (sys.executable, _BOOTSTRAP, "{fd}", order.task, program.target or program.kind)
        bootstrap = json.dumps(to_json(self.bootstrap)).encode("ascii")
        return Command(argv, order.cwd, self.env, *streams, keep_in_memory(bootstrap), self._devices())

    def fork_request(self, limits: tuple[int, int]) -> ForkRequest:
        """Return what a template needs to fork the task. `limits`: of open files (soft, hard)."""
        cwd, streams = self.order.cwd, (self.output.path("stdout"), self.output.path("stderr"))
        path = directory_of(self.order.program, cwd)
        return ForkRequest(to_json(self.bootstrap), self.env, cwd, *streams, limits, self._devices(), path)

    def _devices(self) -> dict[str, Any]:
        """The task's device settings as JSON data, with the numbers of the cores that are its part here."""
        devices = self.order.settings.devices
        return {**to_json(devices), "cores": cores_of(*devices.cores) if devices.cores else None}


@dataclass(slots=True, eq=False)
class StartedTask:
    """One attempt of a task, from the start of its first process until nothing of it is left."""

    order: messages.TaskOrder
    pid: int
    """The pid of the task's first process, which leads the session and the process group of the task."""
    lifeline: int
    """The agent's end of the task's lifeline; see lifeline.py."""
    output: TaskOutput
    stacks: Stacks
    stopped_at: float = 0.0
    """When the order to stop came while the program ran, in seconds since the epoch; 0: no such order has come."""
    condition: str = ""
    """What kept the task from acting when the order to stop came, such as ``stopped (SIGSTOP)``; see process_state.py."""
    kill_at: float = math.inf
    """When what is left of the task gets SIGKILL, by the monotonic clock; infinite: the task runs, and no order to stop has come."""
    over_at: float = math.inf
    """When the program was first seen to have ended, though its process has not, by the monotonic clock; infinite: it was not."""
    torn: bool = False
    """The interpreter did not end by itself after the program was over, and is killed."""
    code: int | None = None
    """The exit code of the program, -n for signal n; None: the first process has not ended."""

    @property
    def stopped(self) -> bool:
        """The order to stop came while the program ran."""
        return self.stopped_at > 0

    @property
    def exited(self) -> bool:
        return self.code is not None


def prepare(
    host_env: Mapping[str, str], start: messages.StartTasks, order: messages.TaskOrder, output: TaskOutput, snapshots: str | None = None
) -> PendingTask:
    """Compose the environment and the bootstrap's order of a task, with its memory for `snapshots`. Raises KeyError without its cluster."""
    tf_config = tf_config_of(start, order)
    env = compose(host_env, start, order, output.directory, tf_config)
    env.pop(snapshot_memory.VARIABLE, None)  # of a run from which this one was started
    if snapshots is not None:
        env[snapshot_memory.VARIABLE] = snapshots
    if TaskId.parse(order.task).type == PREPARE:
        # `python` in the command of `prepare:` is the tasks' interpreter, even if PATH names another one first.
        env["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{env.get('PATH', os.defpath)}"
    program = replace(order.program, args=(start.call,)) if order.program.kind == "function" else order.program
    bootstrap = messages.BootstrapOrder(
        task=order.task, program=program, tf_config=tf_config, log_dir=output.directory, settings=order.settings
    )
    return PendingTask(order, output, env, bootstrap)
