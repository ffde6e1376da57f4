"""A function that runs in tasks, and its outcome in each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import Any, NoReturn

from worker.protocol.messages import Failure

from ..model.cause import peer_errors
from ..record import stack_report
from .failures import TaskFailed, TimedOut
from .outcomes import Outcome
from .pool import PooledRun
from .tasks import Task

WORKER = f"{Path(__file__).parents[2] / 'worker'}{os.sep}"
"""The beginning of the names of the files of orch that run in a task."""
TESTING = f"{Path(__file__).parent}{os.sep}"
"""The same of the files with `barrier`."""
LAST_WORDS = 1 << 16
"""How many characters at the end of a task's output may say why TensorFlow has aborted the process."""


class Job:
    """A function that was started in tasks; see `Cluster.start`."""

    def __init__(self, run: PooledRun, tasks: Iterable[Task], name: str, *, timeout_s: float, grace_s: float) -> None:
        self._run, self.name, self._grace_s = run, name, grace_s
        self._timeout_s = timeout_s
        self._until = run.session.now() + timeout_s
        self._chosen = {task.name: task for task in tasks}
        self.tasks = {task: Outcome(task, function=name) for task in self._chosen}
        """The outcome of the function, by task."""
        self.stacks: dict[str, str] = {}
        """The stacks of the tasks in which the function still ran at a failure or at the timeout, as `faulthandler` writes them."""
        self.cause: TaskFailed | None = None
        """Why `result` raised what it raised."""

    def __repr__(self) -> str:
        return f"<Job {self.name}: {', '.join(f'{name} {outcome.state}' for name, outcome in self.tasks.items())}>"

    @property
    def is_done(self) -> bool:
        """True if the function has come to an end, good or bad, in all tasks."""
        self._run.poll()
        return not self._running()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the function has come to an end in all tasks, good or bad. False: not after `timeout` seconds, or not
        within the time of the call."""
        return self._wait(timeout, lambda: False)

    def _wait(self, timeout: float | None, is_enough: Callable[[], object]) -> bool:
        """Wait until the function has come to an end in all tasks, or until `is_enough`. False: the time was over before, `timeout` or that
        of the call."""
        self._run.poll()
        left_s = self._until - self._run.session.now() if timeout is None else timeout
        return self._run.wait(lambda: is_enough() or not self._running(), left_s)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """The values that the function has returned, by task, once it has returned in all of them.

        Raises what the function has raised in the task that failed first, from a `TaskFailed` with that task's traceback and the state
        of the others; `TaskFailed` itself if a task was killed or died, if the exception cannot be sent, or if the cluster was
        left before the function was over; `TimedOut`, with all stacks, after `timeout` seconds or at the end of the call's own time.
        Tasks in which the function still runs then are killed.
        """
        __tracebackhide__ = True
        if not self._wait(timeout, self._failed):
            self.time_out(timeout)
        # Within the grace, all tasks end that the loss of a peer can be about. The others wait for the task that has failed.
        if not self.join(self._grace_s):
            self._locate_tasks()
            self._end_tasks()
        if isinstance(self.cause, TimedOut):  # raised before
            raise self.cause
        # A peer that has died comes before those that TensorFlow has told of it.
        first = min(self._failed(), key=lambda outcome: (self._has_lost_a_peer(outcome), outcome.at), default=None)
        if first is not None:
            first.pass_on()
            self.cause = TaskFailed(first.task, first.what, {**self.tasks, **self._lost()}, self.stacks, first.traceback)
            if first.error is not None:
                raise first.error from self.cause
            raise self.cause
        if stopped := [name for name, outcome in self.tasks.items() if outcome.state != "returned"]:
            self.cause = TaskFailed(stopped[0], f"stopped: the cluster was left before {self.name} was over", self.tasks, self.stacks)
            raise self.cause
        return {name: outcome.value for name, outcome in self.tasks.items()}

    def _failed(self) -> list[Outcome]:
        return [outcome for outcome in self.tasks.values() if outcome.state in ("raised", "died", "killed")]

    def _has_lost_a_peer(self, outcome: Outcome) -> bool:
        """True if a task failed because TensorFlow has lost another task, as ``Socket closed`` says."""
        failure, words = None, ""
        if outcome.state == "raised":
            failure = Failure(outcome.type, outcome.message, outcome.traceback, outcome.at)
        elif outcome.code == -signal.SIGABRT:  # TensorFlow aborts the process after some losses, and writes why
            words = self._chosen[outcome.task].logs[-LAST_WORDS:]
        return peer_errors.read(failure, words, outcome.task) is not None

    def _lost(self) -> dict[str, Outcome]:
        """The other tasks of the cluster whose processes have ended. The function may wait for them, or may test what comes then."""
        others = (task for name, task in self._run.tasks.items() if name not in self.tasks)
        return {task.name: copy(task.lost) for task in others if task.lost is not None}

    def _running(self) -> list[str]:
        return [name for name, outcome in self.tasks.items() if not outcome.has_ended]

    def _end_tasks(self) -> None:
        """Kill the tasks in which the function still runs."""
        self._run.end_processes(self._chosen[name] for name in self._running())

    def _locate_tasks(self) -> None:
        """Find out where the function is in the tasks in which it still runs."""
        self.stacks = self._run.stacks([self._chosen[name] for name in self._running()])
        for name, stack in self.stacks.items():
            self.tasks[name].where = stack_report.place(stack_report.parse(stack)) if stack else "no answer"

    def time_out(self, timeout: float | None = None) -> NoReturn:
        """Raise `TimedOut` after so many seconds, by default those of the call, and kill the tasks in which the function still runs."""
        __tracebackhide__ = True
        limit_s = self._timeout_s if timeout is None else timeout
        self._locate_tasks()
        what = f"{self.name} was not over after {limit_s:g} s"
        text = "\n\n".join(f"--- {name}\n{_without_ours(stack)}" for name, stack in self.stacks.items())
        tasks = {name: copy(outcome) for name, outcome in self.tasks.items()} | self._lost()
        self.cause = TimedOut("", what, tasks, self.stacks, text)
        self._end_tasks()
        raise self.cause


def _without_ours(stack: str) -> str:
    """A stack without orch's own threads, the main thread first, and without the frames of orch, around the function of the test.

    In each thread the outermost call comes last.
    """
    *others, main = stack_report.threads_of(stack) or [stack.rstrip().splitlines()]
    others = [thread for thread in others if not any(line.startswith(f'  File "{WORKER}') for line in thread)]
    return "\n".join([_without_callers(main), *map("\n".join, others)])


def _without_callers(lines: list[str]) -> str:
    kept = [line for line in lines if not line.startswith((f'  File "{WORKER}', f'  File "{TESTING}'))]
    return "\n".join(kept if any(line.startswith("  File ") for line in kept) else lines)
