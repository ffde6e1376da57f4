"""A function that runs in tasks, and its outcome in each."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

from worker.protocol.messages import Failure
from worker.values.fast_dataclass import dataclass

from ..model.cause import peer_errors
from ..model.cause.exit_status import describe_code
from ..record.text import stack_report
from .failures import TaskFailed, TimedOut
from .pickling import unpack

if TYPE_CHECKING:
    from .clusters import Cluster

POLL_S = 0.02
"""How often the files of tasks are read, in seconds; messages are read at once."""
LAST_WORDS = 1 << 16
"""How many characters at the end of a task's output may say why TensorFlow has aborted the process."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a function in one task."""

    task: str
    state: str = "running"
    """``running``, ``returned``, ``raised``, ``died`` (the process has ended by itself), ``killed`` (by the test) or ``stopped`` (orch has
    killed the process: another task had failed, the time was over, or the ``with`` block had ended)."""
    value: Any = None
    """The value that the function returned."""
    type: str = ""
    """The name of the exception's class: ``ValueError``. Empty if no exception was raised."""
    message: str = ""
    """The text of the exception."""
    traceback: str = ""
    """The traceback of the exception, as Python prints it in the task."""
    code: int | None = None
    """How the process has ended while it ran the function: an exit code, or -n for signal n."""
    where: str = ""
    """The place in the code at which the last stack of the task was taken: ``in all_reduce (test_step.py:12)``."""
    at: float = 0.0
    """When the function ended in this task, by `time.monotonic`."""
    error: BaseException | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.state != "running"

    @property
    def what(self) -> str:
        """``ValueError: …``, ``SIGKILL``, ``exit code 3``; empty if the function has not failed."""
        return describe_exit(self.code) if self.code is not None else ": ".join(filter(None, (self.type, self.message)))

    def fail(self, kind: str, message: str, traceback: str = "") -> None:
        """The function has raised an exception of this class."""
        self.state, self.type, self.message, self.traceback = "raised", kind, message, traceback

    def describe(self) -> str:
        """The state in one line, as reports show it."""
        words = {"returned": "had returned", "raised": f"raised {self.what}", "died": self.what, "killed": f"{self.what}, by the test"}
        text = words.get(self.state, self.state)
        return f"{text}, {self.where}" if self.where and self.state in ("running", "stopped") else text


class Job:
    """A function that was started in tasks; see `Cluster.start`."""

    def __init__(self, cluster: Cluster, tasks: Iterable[str], name: str) -> None:
        self._cluster, self._run, self.name = cluster, cluster.pooled_run, name
        self._timeout_s = cluster.timeout_s
        self._until = cluster.session.now() + cluster.timeout_s
        self.own_part: Callable[[], Any] | None = None
        """The part of the job that is for the test's own process (`in_process`); it runs when the job is waited for."""
        self.tasks = {name: Outcome(name) for name in tasks}
        """The outcome of the function, by task."""
        self.stacks: dict[str, str] = {}
        """The stacks of the tasks in which the function still ran at a failure or at the timeout, as `faulthandler` writes them."""
        self.cause: TaskFailed | None = None
        """Why `result` raised what it raised."""

    def __repr__(self) -> str:
        return f"<Job {self.name}: {', '.join(f'{name} {outcome.state}' for name, outcome in self.tasks.items())}>"

    @property
    def is_done(self) -> bool:
        """Whether the function has come to an end, good or bad, in all tasks."""
        self._run.poll()
        return not self._running()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the function has come to an end in all tasks, good or bad. False: not after `timeout` seconds, or not
        within the time of the call."""
        return self._wait(timeout, lambda: False)

    def _wait(self, timeout: float | None, is_enough: Callable[[], object]) -> bool:
        """Wait until the function has come to an end in all tasks, or until `is_enough`. False: the time was over before, `timeout` or that
        of the call."""
        self._run_own_part()
        self._run.poll()
        left_s = self._until - self._cluster.session.now() if timeout is None else timeout
        return self._run.wait(lambda: is_enough() or not self._running(), left_s)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """The values that the function has returned, by task, once it has returned in all of them.

        Raises what the function has raised in the task that failed first, from a `TaskFailed` with that task's traceback and the state
        of the others; `TaskFailed` itself if a task was killed or died, if the exception cannot be carried here, or if the cluster was
        left before the function was over; `TimedOut`, with all stacks, after `timeout` seconds or at the end of the call's own time.
        Tasks in which the function still runs then are killed.
        """
        __tracebackhide__ = True
        if not self._wait(timeout, self._failed):
            self.time_out(timeout)
        # Within the grace, all tasks end that the loss of a peer can be about. The others wait for the task that has failed.
        if not self.join(self._cluster.grace_s):
            self._locate_tasks()
            self._end_tasks()
        if isinstance(self.cause, TimedOut):  # raised before
            raise self.cause
        # A peer that has died comes before those that TensorFlow has told of it.
        first = min(self._failed(), key=lambda outcome: (self._has_lost_a_peer(outcome), outcome.at), default=None)
        if first is not None:
            self.cause = TaskFailed(first.task, first.what, self.tasks, self.stacks, first.traceback)
            if first.error is not None:
                raise first.error from self.cause
            raise self.cause
        if stopped := [name for name, outcome in self.tasks.items() if outcome.state != "returned"]:
            self.cause = TaskFailed(stopped[0], f"stopped: the cluster was left before {self.name} was over", self.tasks, self.stacks)
            raise self.cause
        return {name: outcome.value for name, outcome in self.tasks.items()}

    def _run_own_part(self) -> None:
        """Run the part of the job that is for the test's own process, at the first wait."""
        if self.own_part is None:
            return
        function, self.own_part = self.own_part, None
        (outcome,) = [outcome for name, outcome in self.tasks.items() if self._cluster[name].is_own]
        if any(other.state == "stopped" for other in self.tasks.values()):  # the cluster was left: this part would wait for the others
            outcome.state = "stopped"
            return
        try:
            outcome.value, outcome.state = function(), "returned"
        except Exception as error:
            outcome.fail(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
            outcome.error = error
        outcome.at = time.monotonic()

    def _failed(self) -> list[Outcome]:
        return [outcome for outcome in self.tasks.values() if outcome.state in ("raised", "died", "killed")]

    def _has_lost_a_peer(self, outcome: Outcome) -> bool:
        """Whether a task failed because TensorFlow has lost another task, as ``Socket closed`` says."""
        failure, words = None, ""
        if outcome.state == "raised":
            failure = Failure(outcome.type, outcome.message, outcome.traceback, outcome.at)
        elif outcome.code == -signal.SIGABRT:  # TensorFlow aborts the process after some losses, and writes why
            words = self._cluster[outcome.task].logs[-LAST_WORDS:]
        return peer_errors.read(failure, words, outcome.task) is not None

    def _running(self) -> list[str]:
        return [name for name, outcome in self.tasks.items() if not outcome.has_ended]

    def _end_tasks(self) -> None:
        """Kill the tasks in which the function still runs."""
        self._run.end_processes(self._cluster[name] for name in self._running())

    def _locate_tasks(self) -> None:
        """Find out where the function is in the tasks in which it still runs."""
        self.stacks = self._cluster.stacks(*self._running())
        for name, stack in self.stacks.items():
            self.tasks[name].where = stack_report.place(stack_report.parse(stack)) if stack else "no answer"

    def time_out(self, timeout: float | None = None) -> NoReturn:
        """Raise `TimedOut` after so many seconds, by default those of the call, and kill the tasks in which the function still runs."""
        __tracebackhide__ = True
        limit_s = self._timeout_s if timeout is None else timeout
        self._locate_tasks()
        what = f"{self.name} was not over after {limit_s:g} s"
        text = "\n\n".join(f"--- {name}\n{stack.rstrip()}" for name, stack in self.stacks.items())
        self.cause = TimedOut("", what, {name: copy(outcome) for name, outcome in self.tasks.items()}, self.stacks, text)
        self._end_tasks()
        raise self.cause

    # --- events --------------------------------------------------------------------------------

    def on_answer(self, task: str, message: Mapping[str, Any]) -> None:
        """The function has returned or raised in a task."""
        outcome, error = self.tasks[task], message.get("error")
        outcome.at = message["at"]
        if error is None:
            try:
                outcome.value, outcome.state = unpack(message["value"]), "returned"
            except Exception as problem:
                text = f"what {self.name} has returned cannot be read in the test's process: {problem}"
                outcome.fail(type(problem).__name__, text)
        else:
            outcome.fail(error["type"], error["message"], error["traceback"])
            if error["pickled"] is not None:
                with contextlib.suppress(Exception):
                    outcome.error = unpack(error["pickled"])

    def on_exited(self, task: str, state: str, code: int, at: float) -> None:
        """The process of a task has ended; `code` negative for a signal."""
        outcome = self.tasks[task]
        if not outcome.has_ended:
            outcome.state, outcome.code, outcome.at = state, code, at


def describe_exit(code: int) -> str:
    """``SIGKILL``, ``SIGSEGV: segmentation fault``, ``exit code 3``. `code`: -n for signal n."""
    return f"exit code {code}" if code >= 0 else describe_code(128 - code, killed=True).removeprefix("killed by ")
