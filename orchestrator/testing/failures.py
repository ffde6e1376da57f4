"""The exceptions that a test gets when a function has not come to its end in a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import OrchError

if TYPE_CHECKING:
    from .jobs import Outcome


class TaskFailed(OrchError):
    """A function did not come to its end in a task. The text has all that is known; the attributes have the parts.

    An exception that a function raised is raised again in the test, with its own type, if it can be carried there: then this is its
    `__cause__`.
    """

    def __init__(self, task: str, what: str, tasks: Mapping[str, Outcome], stacks: Mapping[str, str], traceback: str = "") -> None:
        others = [f"  {name}: {outcome.describe()}" for name, outcome in tasks.items() if name != task]
        heading = ["the other tasks:" if task else "the tasks:"] if others else []
        parts = [f"{task}: {what}" if task else what, traceback.rstrip(), "\n".join([*heading, *others])]
        super().__init__("\n".join(part for part in parts if part))
        self.task = task
        """The task that failed first; empty if the time ran out."""
        self.what = what
        """``ValueError: …``, ``SIGKILL``, ``exit code 3``."""
        self.traceback = traceback
        """The task's own, as Python prints it; empty if there was no exception."""
        self.tasks = tasks
        """What became of the function in each task."""
        self.stacks = stacks
        """The stacks of the tasks in which the function had not come to an end, as `faulthandler` writes them."""


class TimedOut(TaskFailed, TimeoutError):
    """A function was not over in time; `stacks` has the stack of each task."""


class ClusterLost(OrchError):
    """A cluster could not be started, or orch itself has lost it."""
