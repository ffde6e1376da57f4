"""How a task comes to life: forked from a template if there is one for it, executed if there is none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .. import contract
from . import environment, processes
from .memory import keep_in_memory
from .output import TaskOutput
from .templates import Fork, Template, Templates

_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "task", "start.py")


@dataclass(slots=True)
class Birth:
    """A task that has been ordered and has no process yet. `stop_after_s`: it was asked to stop meanwhile, with this grace."""

    order: contract.TaskOrder
    output: TaskOutput
    told: contract.BootstrapOrder
    env: dict[str, str]
    template: Template | None = None
    fork: Fork | None = None
    stop_after_s: float | None = None


class Starter:
    """`on_started` gets each birth with its pid and our end of its lifeline; `on_failed` gets the others, with the reason;
    `on_waiting` those that have to wait, with what for."""

    def __init__(
        self,
        templates: Templates,
        limits: tuple[int, int],
        on_started: Callable[[Birth, int, int], None],
        on_failed: Callable[[Birth, str], None],
        on_waiting: Callable[[Birth, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._templates, self._limits = templates, limits
        self._on_started, self._on_failed, self._on_waiting, self._say = on_started, on_failed, on_waiting, say
        self._births: list[Birth] = []

    def __bool__(self) -> bool:
        return bool(self._births)

    def start(self, birth: Birth) -> None:
        """Start a task now, or as soon as its template is ready."""
        template = self._templates.find(birth.env) if birth.order.program.kind != "command" else None
        if template is None:
            self._execute(birth)
            return
        birth.template = template
        birth.fork = Fork(
            self._request(birth, template), lambda pid, life: self._born(birth, pid, life), lambda why: self._refused(birth, why)
        )
        self._births.append(birth)
        if not template.ready:
            self._on_waiting(birth, f"importing {', '.join(template.preload)}")
        template.fork(birth.fork)

    def stop(self, grace_s: float, names: Collection[str] | None) -> None:
        """Have nothing started any more that can still be withdrawn; the rest is stopped when it comes."""
        for birth in list(self._births):
            if names is not None and birth.order.task not in names:
                continue
            birth.stop_after_s = grace_s if birth.stop_after_s is None else min(grace_s, birth.stop_after_s)
            if birth.template is not None and birth.fork is not None and birth.template.withdraw(birth.fork):
                self._births.remove(birth)
                self._on_failed(birth, "stopped before it was started")

    def _born(self, birth: Birth, pid: int, lifeline: int) -> None:
        self._births.remove(birth)
        self._on_started(birth, pid, lifeline)

    def _refused(self, birth: Birth, why: str) -> None:
        self._births.remove(birth)
        if birth.stop_after_s is not None:
            self._on_failed(birth, "stopped before it was started")
            return
        self._say(f"{birth.order.task} gets a fresh interpreter: {why}")
        self._execute(birth)

    def _execute(self, birth: Birth) -> None:
        command = _command(birth)
        try:
            pid, lifeline = processes.spawn(command, self._limits)
        except (processes.SpawnError, OSError) as error:
            self._on_failed(birth, str(error))
        else:
            self._on_started(birth, pid, lifeline)
        finally:
            if command.order_fd is not None:
                os.close(command.order_fd)

    def _request(self, birth: Birth, template: Template) -> dict[str, object]:
        order = birth.order
        is_script = order.program.kind == "script"
        path = os.path.dirname(os.path.realpath(os.path.join(order.cwd, order.program.target))) if is_script else order.cwd
        return {
            "order": contract.to_json(birth.told),
            "env": birth.env,
            "cwd": order.cwd,
            "stdout": birth.output.path("stdout"),
            "stderr": birth.output.path("stderr"),
            "limits": self._limits,
            "path": path,
            "preload": template.preload,
        }


def prepare(host_env: dict[str, str], start: contract.StartTasks, order: contract.TaskOrder, output: TaskOutput) -> Birth:
    """All that a task is told. Raises KeyError for a cluster that was not sent."""
    tf_config = environment.tf_config_of(start, order)
    env = environment.compose(host_env, start, order, output.directory, tf_config)
    told = contract.BootstrapOrder(order.task, order.program, order.strategy, tf_config, order.devices, output.directory)
    return Birth(order, output, told, env)


def _command(birth: Birth) -> processes.Command:
    order, program = birth.order, birth.order.program
    streams = birth.output.path("stdout"), birth.output.path("stderr")
    if program.kind == "command":
        return processes.Command((program.target, *program.args), order.cwd, birth.env, *streams)
    # The last two words are only there to be read in `ps`; the user's arguments may hold secrets and are not.
    argv = (sys.executable, _BOOTSTRAP, "{fd}", order.task, program.target or program.kind)
    told = json.dumps(contract.to_json(birth.told)).encode("ascii")
    return processes.Command(argv, order.cwd, birth.env, *streams, order_fd=keep_in_memory(told))
