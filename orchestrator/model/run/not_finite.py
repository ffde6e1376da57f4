"""Reported values that are no finite numbers: a loss that is NaN trains nothing, and the run would end as a success. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..task_names import group_tasks
from .cluster import Cause, Cluster

_WORDS = ("nan", "inf", "-inf")
"""The values in a report that JSON has no number for (worker/task/reports.py)."""
_WHEN = ("epoch", "step")
ABOUT = "a-loss-that-is-nan"
"""The heading of docs/why.md."""
REMEDY = f"a smaller learning rate, clipped gradients, or the data has such values; --fail-on-nan ends such a run; more: orch help {ABOUT}"


def seen(before: Mapping[str, str], report: Mapping[str, Any]) -> Mapping[str, str]:
    """The values of a task's report that are not finite, each with the first report that showed this: ``{"loss": "nan by epoch 2"}``.

    `before`: the same of the report before. A value that is finite again is left out. Reports reach the controller every few seconds, so
    the value may have become NaN some steps earlier, or even in the epoch before.
    """
    when = " and ".join(f"{name} {report[name]}" for name in _WHEN if name in report)
    found = {name: value for name, value in report.items() if isinstance(value, str) and value in _WORDS}
    return {name: before.get(name, f"{value} by {when}" if when else value) for name, value in found.items()}


def judge(cluster: Cluster) -> tuple[str, ...]:
    """A remark about each value that is not finite in the last report of its training tasks; none where such a value ends the run."""
    by_value: dict[tuple[str, str], list[str]] = {}
    for task in () if cluster.policy.fail_on_nan else cluster.tasks.values():
        for name, what in task.not_finite.items() if task.trains else ():
            by_value.setdefault((name, what), []).append(task.name)
    return tuple(f"{group_tasks(names)}: {name} is {what}: {REMEDY}" for (name, what), names in by_value.items())


def cause(cluster: Cluster, at: float) -> Cause | None:
    """Why the run has failed, if a training task has reported such a value and the user wants that to be a failure."""
    for task in cluster.tasks.values() if cluster.policy.fail_on_nan else ():
        for name, what in task.not_finite.items() if task.trains else ():
            return Cause(f"reported that {name} is {what} (--fail-on-nan)", at, task.name, task.host, attempt=task.attempt)
    return None
