"""The errors of orch. Each error is one message for a user and one exit code.

The codes are the table of docs/exit-codes.md; `orchestrator.cli` is the only place that exits.
"""

from __future__ import annotations

from worker.values.fast_dataclass import dataclass

USAGE = 2
DEADLINE = 124
BROKEN = 125
INTERRUPTED = 130
TERMINATED = 143


class OrchError(Exception):
    """orch or its backend has failed (exit code 125). The text has a line for what happened, one for `fix`, and one for `more`."""

    exit_code = BROKEN

    def __init__(self, what: str = "", fix: str = "", more: str = "") -> None:
        """`fix`: what to do. `more`: the topic of `orch help` about it."""
        lines = (what, f"fix: {fix}" if fix else "", f"more: orch help {more}" if more else "")
        super().__init__("\n".join(filter(None, lines)))
        self.line = "; ".join(filter(None, (what, fix)))
        """The text for a place that has one line."""


class UnansweredError(OrchError):
    """A program has not answered in time: no one knows whether it has done what it was asked for (exit code 125)."""


class UsageError(OrchError):
    """The command line, or a file that it names, is wrong; nothing was started (exit code 2)."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a spec."""

    place: str
    """``orch.yaml:7``, ``--workers``; may be empty."""
    message: str
    hint: str = ""
    """What to do."""

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}\nfix: {self.hint}" if self.hint else text


class SpecError(UsageError):
    """All mistakes in a spec, at once."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
