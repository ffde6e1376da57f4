"""What orch says when it cannot go on. Each error is one message for a user and one exit code.

The codes are the table of docs/exit-codes.md; `orchestrator.cli` is the only place that exits.
"""

from __future__ import annotations

from worker.fast_dataclass import dataclass

USAGE = 2
DEADLINE = 124
BROKEN = 125
INTERRUPTED = 130
TERMINATED = 143


class OrchError(Exception):
    """orch or its backend could not do what was asked (exit code 125)."""

    exit_code = BROKEN


class UsageError(OrchError):
    """The command line, or what it points at, is wrong; nothing was started (exit code 2)."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a spec: where (``orch.yaml:7``, ``--workers``), what, and what to do."""

    place: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text} ({self.hint})" if self.hint else text


class SpecError(UsageError):
    """Everything that is wrong with a spec, at once."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
