"""Reported values that are no finite numbers: a loss that is NaN trains nothing, and the run would end as a success. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.protocol.task_files import NOT_FINITE

from ..settings.findings import listed
from ..state.cluster import Cause, Cluster
from ..task_names import group_tasks

_WHEN = ("epoch", "step")
ABOUT = "a-loss-that-is-nan"
"""The heading of docs/why.md."""
_REMEDY = "lower the learning rate, clip gradients, or look for such values in the data"
REMEDY = f"fix: {_REMEDY}; --fail-on-nan ends such a run. more: orch help {ABOUT}"


def as_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a report with NaN and infinities as the numbers that the program has reported: JSON has words for them."""
    return {name: float(value) if isinstance(value, str) and value in NOT_FINITE else value for name, value in report.items()}


def seen(before: Mapping[str, str], report: Mapping[str, Any]) -> Mapping[str, str]:
    """The values of a task's report that are not finite, each with the first report that showed this: ``{"loss": "nan by epoch 2"}``.

    `before`: the same of the report before. A value that is finite again is left out. Reports reach the controller every few seconds, so
    the value may have become NaN some steps earlier, or even in the epoch before.
    """
    when = " and ".join(f"{name} {report[name]}" for name in _WHEN if name in report)
    found = {name: value for name, value in report.items() if isinstance(value, str) and value in NOT_FINITE}
    names = (*filter(found.__contains__, before), *(name for name in found if name not in before))  # the oldest first
    return {name: before.get(name, f"{found[name]} by {when}" if when else found[name]) for name in names}


def judge(cluster: Cluster) -> tuple[str, ...]:
    """A remark about the values that are not finite in the last reports of the training tasks; none where such a value ends the run."""
    return tuple(f"{text}. {REMEDY}" for text in describe(cluster))


def news(before: Cluster, after: Cluster, task: str) -> str:
    """A line when a report of `task` shows the first value of a run that is not finite; empty otherwise."""
    if not after.tasks[task].not_finite or any(each.not_finite for each in before.tasks.values()):
        return ""
    return "; ".join(f"{text}; --fail-on-nan ends such a run" for text in describe(after))


def describe(cluster: Cluster) -> tuple[str, ...]:
    """``worker-0..1: loss is nan by epoch 1``, of each task's first such report; empty where the cause of the end says so."""
    by_text: dict[str, list[str]] = {}
    for task in () if cluster.policy.fail_on_nan else cluster.tasks.values():
        for word in NOT_FINITE if task.not_finite and task.trains else ():
            found = {name: what for name, what in task.not_finite.items() if what.split()[0] == word}
            if found:
                text = f"{listed(found)} {'is' if len(found) == 1 else 'are'} {next(iter(found.values()))}"
                by_text.setdefault(text, []).append(task.name)
    return tuple(f"{group_tasks(names)}: {text}" for text, names in by_text.items())


def cause(cluster: Cluster, at: float) -> Cause | None:
    """Why the run has failed, if a training task has reported such a value and the user wants that to be a failure."""
    for task in cluster.tasks.values() if cluster.policy.fail_on_nan else ():
        for name, what in task.not_finite.items() if task.trains else ():
            what = f"reported that {name} is {what} (--fail-on-nan)"
            return Cause(what, at, task.name, task.host, attempt=task.attempt, remedy=_REMEDY, about=ABOUT)
    return None
