"""The outcome of a function in one task."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from worker.values.fast_dataclass import dataclass

from ..functions import unpack
from ..model.cause.exit_status import describe_code
from ..record.text.noise import without_own


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
    function: str = field(default="", repr=False)
    """The name of the function."""

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

    def has_raised_as(self, other: Outcome) -> bool:
        """True if the function has raised the same exception in both tasks."""
        is_alike = self.type == other.type and without_own(self.message) == without_own(other.message)
        return self.state == other.state == "raised" and is_alike

    def pass_on(self) -> None:
        """Skip the test of this process, or let it fail as expected, if the function has said so by ``pytest.skip`` or ``pytest.xfail``."""
        if self.state != "raised" or self.type not in ("Skipped", "XFailed"):
            return
        import pytest  # only a function that has imported pytest raises these

        why = f"{self.task}: {self.message}"
        if self.type == "XFailed":
            pytest.xfail(why)
        raise pytest.skip.Exception(why, _use_item_location=True)  # the test's place, not the one of this line

    def describe(self) -> str:
        """The state in one line, as reports show it."""
        words = {"returned": "had returned", "raised": f"raised {self.what}", "died": self.what, "killed": f"{self.what}, by the test"}
        text = words.get(self.state, self.state)
        return f"{text}, {self.where}" if self.where and self.state in ("running", "stopped") else text

    # --- events --------------------------------------------------------------------------------

    def on_answer(self, message: Mapping[str, Any]) -> None:
        """The function has returned or raised."""
        error = message.get("error")
        self.at = message["at"]
        if error is None:
            try:
                self.value, self.state = unpack(message["value"]), "returned"
            except Exception as problem:
                self.fail(type(problem).__name__, f"what {self.function} has returned cannot be read in the test's process: {problem}")
        else:
            self.fail(error["type"], error["message"], error["traceback"])
            if error["pickled"] is not None:
                with contextlib.suppress(Exception):
                    self.error = unpack(error["pickled"])

    def on_exited(self, state: str, code: int, at: float) -> None:
        """The process of the task has ended; `code` negative for a signal."""
        if not self.has_ended:
            self.state, self.code, self.at = state, code, at


def describe_exit(code: int) -> str:
    """``SIGKILL``, ``SIGSEGV: segmentation fault``, ``exit code 3``. `code`: -n for signal n."""
    return f"exit code {code}" if code >= 0 else describe_code(128 - code, killed=True).removeprefix("killed by ")
