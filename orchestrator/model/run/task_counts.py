"""Updates `Cluster.missing`, `left` and `undecided` with each change of a task. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..strategies import named
from . import readiness
from .cluster import Cluster, TaskState, TaskStatus


def update(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The cluster with changes to one task, and with new counts."""
    before = cluster.tasks[name]
    after = replace(before, **changes)
    missing, left, undecided = (new - old for new, old in zip(_tally(cluster, after), _tally(cluster, before), strict=True))
    return replace(
        cluster,
        tasks={**cluster.tasks, name: after},
        missing=cluster.missing + missing,
        left=cluster.left + left,
        undecided=cluster.undecided + undecided,
    )


def recount(cluster: Cluster) -> Cluster:
    """The cluster with all counts computed again."""
    tallies = [_tally(cluster, task) for task in cluster.tasks.values()]
    missing, left, undecided = (sum(column) for column in zip(*tallies, strict=True))
    return replace(cluster, missing=missing, left=left, undecided=undecided)


def _tally(cluster: Cluster, task: TaskStatus) -> tuple[bool, bool, bool]:
    """Whether this task counts in `missing`, `left` and `undecided`."""
    return (
        readiness.is_missing(cluster.policy, task),
        not (task.has_ended and task.swept),
        named(cluster.policy.strategy).role(task.type).decides and task.state is not TaskState.SUCCEEDED,
    )
