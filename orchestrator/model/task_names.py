"""Names of tasks in messages."""

from __future__ import annotations

from collections.abc import Iterable

from worker.protocol.task_id import TaskId


def group_tasks(names: Iterable[str]) -> str:
    """Names of tasks, with ranges for consecutive indices: ``chief-0, worker-0..3, worker-5``."""
    spans: list[tuple[str, int, int]] = []
    for task in (TaskId.parse(name) for name in names):
        if spans and spans[-1][0] == task.type and spans[-1][2] == task.index - 1:
            spans[-1] = (task.type, spans[-1][1], task.index)
        else:
            spans.append((task.type, task.index, task.index))
    return ", ".join(f"{kind}-{first}" if first == last else f"{kind}-{first}..{last}" for kind, first, last in spans)
