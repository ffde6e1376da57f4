"""The save on order: before a run, a host or a task is taken away, all trainings save after one and the same step. Pure.

First each training waits at the end of a step, and says which step this is. The highest of these steps is named if all have said one.
If one has said none after `ANSWER_S`, such as in a step that needs the one that waits, the step after the highest is named. Then each
goes on to the step, saves, and exits with 42. A training that is further than the step says so, and another step is named.

A task aside, such as an evaluator, trains with no other: it saves at the end of its own step, and the run's save does not depend on that.
"""

from __future__ import annotations

from dataclasses import replace

from ..state import events
from ..state.cluster import Cluster, Phase, Saving, TaskStatus, Verdict
from .endings import Step

ANSWER_S = 1.0
"""How long the other trainings may take to say their step, once the first has."""


def is_possible(cluster: Cluster) -> bool:
    """True if a training runs that can save on order, and is not about to."""
    return cluster.phase in (Phase.STARTING, Phase.RUNNING) and cluster.saving is None and bool(able(cluster))


def is_last(cluster: Cluster) -> bool:
    """True if a save goes on, after which there is no other attempt."""
    return cluster.saving is not None and not cluster.saving.again


def able(cluster: Cluster) -> list[TaskStatus]:
    """The tasks that have not ended and can save on order; without those aside."""
    return [task for task in cluster.tasks.values() if task.saves and not task.has_ended and not task.is_aside]


def begin(cluster: Cluster, ending: Verdict, limit_s: float | None, *, again: bool, code: int) -> Step:
    """Begin a save, after which the attempt ends so. `limit_s`: how long the save may take; None: any time. `code`: see `Saving`."""
    names = tuple(task.name for task in cluster.tasks.values() if task.saves and not task.has_ended)
    until = None if limit_s is None else ending.ended_at + limit_s
    return replace(cluster, saving=Saving(ending, again, until, code)), (events.SaveOrdered(names, None),)


def replace_ending(cluster: Cluster, former: Saving, ending: Verdict, limit_s: float, code: int) -> Cluster:
    """The cluster whose save goes on, and after which there is no other attempt any more."""
    until = ending.ended_at + limit_s if former.until is None else min(former.until, ending.ended_at + limit_s)
    return replace(cluster, needs_hosts=False, saving=replace(former, ending=ending, again=False, until=until, code=code))


def hear(cluster: Cluster, event: events.TaskSaves) -> Step:
    """Return what a training says while a save goes on."""
    saving = cluster.saving
    if saving is None or cluster.tasks[event.task].is_aside:
        return cluster, ()
    if event.state == "saved":
        return replace(cluster, saving=replace(saving, saved=max(saving.saved or 0, event.step))), ()
    if event.state != "waits":
        return cluster, ()
    saving = replace(saving, waits={**saving.waits, event.task: event.step}, waits_since=saving.waits_since or event.at)
    cluster = replace(cluster, saving=saving)
    if saving.step is not None and event.step > saving.step:  # the training was further
        return name(cluster, event.step + 1)
    if saving.step is None and all(task.name in saving.waits for task in able(cluster)):
        return name(cluster, max(saving.waits.values()))
    return cluster, ()


def name(cluster: Cluster, step: int | None = None) -> Step:
    """Name the step after which all save; None: the one after the highest that was said."""
    assert cluster.saving is not None
    step = max(cluster.saving.waits.values()) + 1 if step is None else step
    names = tuple(task.name for task in able(cluster))
    return replace(cluster, saving=replace(cluster.saving, step=step)), (events.SaveOrdered(names, step),)
