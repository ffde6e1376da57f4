"""The tasks of a run as a table: `orch ps`."""

from __future__ import annotations

from ...model.cause.exit_status import describe_code
from ...model.input import input_counts
from ...model.run.cluster import Cluster, TaskState, TaskStatus
from ..output.lines import clean
from .format import aligned, describe_seconds


def table(cluster: Cluster, now: float) -> str:
    """A line for each task. AGE: the time since the task ended, came up or started, whichever was last."""
    rows = [("TASK", "HOST", "STATE", "PID", "AGE", "NOTE"), *(_row(task, now) for task in cluster.tasks.values())]
    remarks = input_counts.judge({task.name: task.input for task in cluster.tasks.values() if task.trains and task.input})
    return "\n".join([*aligned(rows), *(f"input: {line}" for line in remarks)])


def _row(task: TaskStatus, now: float) -> tuple[str, str, str, str, str, str]:
    since = task.ended_at or task.up_at or task.started_at
    note = ""
    if task.code:
        how = describe_code(task.code, task.killed)
        note = f"stopped by orch ({how.removeprefix('killed by ')})" if task.state is TaskState.STOPPED else how
        if task.restart_at is not None:
            note += f"; started again in {describe_seconds(max(0.0, task.restart_at - now))}"
    elif task.report or task.input:
        note = " ".join(f"{key}={_short(value)}" for key, value in task.report.items())
        note += f"  {input_counts.describe(task.input)}" if task.input else ""
    elif task.waiting and not task.has_ended:
        note = task.waiting
    age = describe_seconds(max(0.0, now - since)) if since else ""
    note = clean(" ".join(note.split()))  # it may be the words of a task
    return (task.name, task.host, task.state.value, str(task.pid or ""), age, note)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
