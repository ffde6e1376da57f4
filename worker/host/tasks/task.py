"""What the launcher knows of a task: before it has a process (`PendingTask`), and from then on (`Task`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...cpu_cores import cores_of
from ...fast_dataclass import dataclass
from ...protocol import messages
from ...task_environment import compose, tf_config_of
from ..memfd import keep_in_memory
from ..processes.spawn import Command
from ..program.program_checks import directory_of
from .log_files import TaskOutput
from .task_stacks import Stacks

if TYPE_CHECKING:
    from ..template.fork_server import ForkServer

_BOOTSTRAP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../task/start_task.py"))


@dataclass(slots=True, eq=False)
class PendingTask:
    """One attempt of a task, from its order until it has a process, or is known to get none."""

    order: messages.TaskOrder
    output: TaskOutput
    env: Mapping[str, str]
    """The environment of the task, complete."""
    bootstrap: messages.BootstrapOrder
    """What the first code in the task reads, if the program is Python."""
    fork_server: ForkServer | None = None
    """The template that was asked to fork the task, and has not answered."""
    stop_after_s: float | None = None
    """The grace in seconds with which the task was told to stop before it had a process; None: it was not."""

    @property
    def name(self) -> str:
        return self.order.task

    @property
    def is_python(self) -> bool:
        """Whether the program can be run by a fork of a template. Any other program is executed."""
        return self.order.program.kind != "command"

    def command(self) -> Command:
        """What to execute. The caller closes the command's `inherited_fd`. Raises OSError."""
        order, program = self.order, self.order.program
        streams = self.output.path("stdout"), self.output.path("stderr")
        if not self.is_python:
            return Command((program.target, *program.args), order.cwd, self.env, *streams, cores=self._cores())
        # The last two words are there to be read in `ps`. The user's arguments are left out: they may hold secrets.
        argv = (sys.executable, _BOOTSTRAP, "{fd}", order.task, program.target or program.kind)
        told = json.dumps(messages.to_json(self.bootstrap)).encode("ascii")
        return Command(argv, order.cwd, self.env, *streams, keep_in_memory(told), self._cores())

    def fork_request(self, limits: tuple[int, int]) -> bytes:
        """What `template/template_server.py` reads before it forks the task. `limits`: of open files (soft, hard)."""
        order = self.order
        request = {
            "order": messages.to_json(self.bootstrap),
            "env": self.env,
            "cwd": order.cwd,
            "stdout": self.output.path("stdout"),
            "stderr": self.output.path("stderr"),
            "limits": limits,
            "cores": self._cores(),
            "path": directory_of(order.program, order.cwd),
        }
        return json.dumps(request).encode("ascii")

    def _cores(self) -> list[int] | None:
        return cores_of(*self.order.cores) if self.order.cores is not None else None


@dataclass(slots=True, eq=False)
class Task:
    """One attempt of a task, from the start of its first process until nothing of it is left."""

    order: messages.TaskOrder
    pid: int
    """The pid of the task's first process, which leads the session and the process group of the task."""
    lifeline: int
    """The agent's end of the task's lifeline; see lifeline.py."""
    output: TaskOutput
    stacks: Stacks
    stopped: bool = False
    """The task was told to stop while its program ran."""
    stopped_at: float = 0.0
    """When the task was told to stop, in seconds since the epoch; 0: it was not."""
    condition: str = ""
    """What kept the task from acting when it was told to stop, such as ``stopped (SIGSTOP)``; see process_state.py."""
    kill_at: float | None = None
    """When the task gets SIGKILL, by the monotonic clock; None: it was not told to stop."""
    killed: bool = False
    """The task was sent SIGKILL before it exited."""
    over_at: float | None = None
    """When the launcher saw that the program is over and its interpreter is not, by the monotonic clock; None: it has not seen that."""
    torn: bool = False
    """The interpreter did not end by itself after the program was over, and is killed."""
    exited: bool = False
    """The first process has ended."""
    succeeded: bool = False
    """The task has exited with code 0 without having been told to stop."""


def prepare(host_env: Mapping[str, str], start: messages.StartTasks, order: messages.TaskOrder, output: TaskOutput) -> PendingTask:
    """Compose all that a task is told. Raises KeyError if `start` does not hold the cluster that the order names."""
    tf_config = tf_config_of(start, order)
    env = compose(host_env, start, order, output.directory, tf_config)
    if messages.TaskId.parse(order.task).type == messages.PREPARE:
        # `python` in the command of `prepare:` is the tasks' interpreter, even if PATH names another one first.
        env["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{env.get('PATH', os.defpath)}"
    bootstrap = messages.BootstrapOrder(
        task=order.task, program=order.program, tf_config=tf_config, log_dir=output.directory, settings=order.settings
    )
    return PendingTask(order, output, env, bootstrap)
