"""The sections of a test's report about the tasks that the test has used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .failures import TaskFailed
from .jobs import describe_exit

if TYPE_CHECKING:
    import pytest

    from .session import Session
    from .tasks import Task


def sections(session: Session, report: pytest.TestReport, error: BaseException | None, options: Any) -> list[tuple[str, str]]:
    """Title and text of each, for the report of a phase of a test. `error`: what the phase raised; `options`: of the command line."""
    if not (report.failed or (options.orch_logs and report.when == "call")):
        return []
    failure = _find_failure(error)
    found = [
        section
        for cluster in session.recent
        for task in cluster.tasks.values()
        if (section := _section(task, failure, options.orch_logs or _is_missing(task, report)))
    ]
    if options.orch_keep:
        found.append(("orch: files", f"{session.path}\n"))
    return found


def _find_failure(error: BaseException | None) -> TaskFailed | None:
    while error is not None and not isinstance(error, TaskFailed):
        error = error.__cause__ or error.__context__
    return error


def _is_missing(task: Task, report: pytest.TestReport) -> bool:
    """Whether pytest has captured none of the output of the task: with -s, or where the test itself reads the output."""
    return f"[{task.name}] " not in report.capstdout


def _section(task: Task, failure: TaskFailed | None, with_log: bool) -> tuple[str, str] | None:
    parts = []
    if failure is not None and (stack := failure.stacks.get(task.name, "")) and stack not in str(failure):
        parts.append(f"where it was:\n{stack}")
    if with_log and (log := task.logs):
        parts.append(log)
    if not parts:
        return None
    state = "" if task.exit is None else f" ({describe_exit(task.exit)})"
    return f"orch: {task.name}{state}", "\n".join(parts)
