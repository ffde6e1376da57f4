"""How a task comes to life: forked from a template if there is one for it, executed if there is none."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ...cpu_cores import cores_of
from ...fast_dataclass import dataclass
from ...protocol import messages
from ...task_environment import compose, tf_config_of
from ..loop import Loop
from ..memfd import keep_in_memory
from ..program import program_checks
from ..template.template_choice import NoTemplateError, Templates
from ..template.template_client import Fork, Template
from . import processes
from .log_files import TaskOutput

GATHER_S = 0.1
"""How long tasks are waited for that are refused for the same reason, to be named together."""
_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "task", "start_task.py")


@dataclass(slots=True, eq=False)
class Birth:
    """A task that has been ordered and has no process yet. `stop_after_s`: it was asked to stop meanwhile, with this grace."""

    order: messages.TaskOrder
    output: TaskOutput
    told: messages.BootstrapOrder
    env: dict[str, str]
    template: Template | None = None
    fork: Fork | None = None
    stop_after_s: float | None = None


class Starter:
    """`on_started` gets each birth with its pid and our end of its lifeline; `on_failed` gets the others, with the reason;
    `on_waiting` those that have to wait, with what for. `say`: a line for the user."""

    def __init__(
        self,
        loop: Loop,
        templates: Templates,
        limits: tuple[int, int],
        on_started: Callable[[Birth, int, int], None],
        on_failed: Callable[[Birth, str], None],
        on_waiting: Callable[[Birth, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop, self._templates, self._limits = loop, templates, limits
        self._on_started, self._on_failed, self._on_waiting, self._say = on_started, on_failed, on_waiting, say
        self._births: list[Birth] = []
        self._not_forked: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._births)

    def start(self, births: Sequence[Birth]) -> None:
        """Start tasks, each now or as soon as its template is ready."""
        keys = [None if birth.order.program.kind == "command" else self._templates.key(birth.env) for birth in births]
        sharing = Counter(keys)
        for birth, key in zip(births, keys, strict=True):
            if key is None:
                self._execute(birth)
                continue
            try:
                template = self._templates.choose(birth.env, key, sharing[key])
            except NoTemplateError as error:
                self._execute_instead(birth, str(error))
                continue
            if template is None:
                self._execute(birth)
            else:
                self._fork(birth, template)
        self._say_if_idle()

    def _fork(self, birth: Birth, template: Template) -> None:
        birth.template = template
        birth.fork = Fork(self._request(birth), lambda pid, life: self._born(birth, pid, life), lambda why: self._refused(birth, why))
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
        self._say_if_idle()

    def _refused(self, birth: Birth, why: str) -> None:
        self._births.remove(birth)
        if birth.stop_after_s is not None:
            self._on_failed(birth, "stopped before it was started")
        else:
            self._execute_instead(birth, why)
        self._say_if_idle()

    def _execute_instead(self, birth: Birth, why: str) -> None:
        if not self._not_forked:
            self._loop.after(GATHER_S, self._say_who_was_not_forked)
        self._not_forked.setdefault(why, []).append(birth.order.task)
        self._execute(birth)

    def _say_if_idle(self) -> None:
        if not self._births:
            self._say_who_was_not_forked()

    def _say_who_was_not_forked(self) -> None:
        """One line for each reason, whoever shares it."""
        for why, names in self._not_forked.items():
            listed = " and ".join(messages.few(names).rsplit(", ", 1))
            who = f"{listed} get fresh interpreters" if len(names) > 1 else f"{listed} gets a fresh interpreter"
            self._say(f"{who}: {why}")
        self._not_forked.clear()

    def _execute(self, birth: Birth) -> None:
        try:
            command = _command(birth)
            try:
                pid, lifeline = processes.spawn(command, self._limits)
            finally:
                if command.order_fd is not None:
                    os.close(command.order_fd)
        except (processes.SpawnError, OSError) as error:
            self._on_failed(birth, str(error))
        else:
            self._on_started(birth, pid, lifeline)

    def _request(self, birth: Birth) -> dict[str, object]:
        order = birth.order
        return {
            "order": messages.to_json(birth.told),
            "env": birth.env,
            "cwd": order.cwd,
            "stdout": birth.output.path("stdout"),
            "stderr": birth.output.path("stderr"),
            "limits": self._limits,
            "cores": _cores(order),
            "path": program_checks.directory_of(order.program, order.cwd),
        }


def prepare(host_env: dict[str, str], start: messages.StartTasks, order: messages.TaskOrder, output: TaskOutput) -> Birth:
    """All that a task is told. Raises KeyError for a cluster that was not sent."""
    tf_config = tf_config_of(start, order)
    env = compose(host_env, start, order, output.directory, tf_config)
    if messages.TaskId.parse(order.task).type == messages.PREPARE:  # `python` is the one of the tasks, even if PATH names another first
        env["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{env.get('PATH', os.defpath)}"
    told = messages.BootstrapOrder(
        task=order.task, program=order.program, tf_config=tf_config, log_dir=output.directory, settings=order.settings
    )
    return Birth(order, output, told, env)


def _cores(order: messages.TaskOrder) -> list[int] | None:
    return cores_of(*order.cores) if order.cores is not None else None


def _command(birth: Birth) -> processes.Command:
    order, program = birth.order, birth.order.program
    streams = birth.output.path("stdout"), birth.output.path("stderr")
    if program.kind == "command":
        return processes.Command((program.target, *program.args), order.cwd, birth.env, *streams, cores=_cores(order))
    # The last two words are only there to be read in `ps`; the user's arguments may hold secrets and are not.
    argv = (sys.executable, _BOOTSTRAP, "{fd}", order.task, program.target or program.kind)
    told = json.dumps(messages.to_json(birth.told)).encode("ascii")
    return processes.Command(argv, order.cwd, birth.env, *streams, keep_in_memory(told), _cores(order))
