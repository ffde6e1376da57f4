"""The exceptions that a test gets if a function does not return in a task."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from ..errors import OrchError
from .outcomes import Outcome


class TaskFailed(OrchError):
    """A function did not return in a task. The text has everything that is known, and the attributes have the parts of the text.

    If the function raised an exception that can be sent to the test's process, the test gets the exception itself, and this one is its
    `__cause__`.
    """

    def __init__(self, task: str, what: str, tasks: Mapping[str, Outcome], stacks: Mapping[str, str], traceback: str = "") -> None:
        first = tasks.get(task)
        frames = traceback.rstrip() if not task or '  File "' in traceback else ""  # without a frame, the traceback is `what` once more
        others = [
            f"  {name}: {'raised the same' if first is not None and first.has_raised_as(outcome) else outcome.describe()}"
            for name, outcome in tasks.items()
            if name != task
        ]
        heading = ["the other tasks:" if task else "the tasks:"] if others else []
        shown = _first_line(what) if frames and task else what  # the traceback has the other lines
        parts = [f"{task}: {shown}" if task else shown, "\n".join([*heading, *others])]
        self._brief = "\n".join(part for part in parts if part)
        parts.insert(1, frames)
        super().__init__("\n".join(part for part in parts if part))
        self.task = task
        """The task that failed first; empty if the time was over."""
        self.what = what
        """How the task failed: ``ValueError: …``, ``SIGKILL``, ``exit code 3``."""
        self.traceback = traceback
        """The traceback of the task, as Python prints it; empty if no exception was raised."""
        self.tasks = tasks
        """The outcome of the function in each task, and how a task has ended in which it did not run."""
        self.stacks = stacks
        """The stacks of the tasks in which the function still ran, as `faulthandler` writes them."""

    def leave_out(self, shown: TracebackType | None) -> None:
        """Leave the traceback out of the text, if the text that is `shown` with it ends at the same place."""
        while shown is not None and shown.tb_next is not None:
            shown = shown.tb_next
        place = f'File "{shown.tb_frame.f_code.co_filename}", line {shown.tb_lineno}, in ' if shown is not None else ""
        if place and place in self.traceback:
            self.args = (self._brief,)


def _first_line(what: str) -> str:
    """``AssertionError: Arrays are not equal``: messages of NumPy begin with an empty line."""
    head, *others = [line.rstrip() for line in what.splitlines() if line.strip()] or [""]
    return f"{head} {others[0].strip()}" if head.endswith(":") and others else head


class TimedOut(TaskFailed, TimeoutError):
    """A function did not return in time; `stacks` has the stack of each task."""


class ClusterLost(OrchError):
    """A cluster could not be started, or orch itself has lost it."""
