"""The save on order: before a run, a host or a task is taken away, all trainings save after one and the same step. Pure.

First each training waits at the end of a step, and says which step this is. The highest of these steps is named if all have said one.
If one has said none after `ANSWER_S`, such as in a step that needs the one that waits, the step after the highest is named. Then each
goes on to the step, saves, and exits with 42. A training that is further than the step says so, and another step is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import events
from .cluster import Cause, Cluster, Outcome, Phase, Saving, TaskStatus, Verdict
from .restarts import PREEMPTED

LATE_GRACE_S = 1.0
"""The grace of tasks whose training has used up the grace for its save."""
ANSWER_S = 1.0
"""How long the other trainings may take to say their step, once the first has."""


def is_possible(cluster: Cluster) -> bool:
    """Whether a training runs that can save on order, and is not about to."""
    return cluster.phase in (Phase.STARTING, Phase.RUNNING) and cluster.saving is None and bool(able(cluster))


def able(cluster: Cluster) -> list[TaskStatus]:
    """The tasks that have not ended and can save on order."""
    return [task for task in cluster.tasks.values() if task.saves and not task.has_ended]


def begin(cluster: Cluster, ending: Verdict, limit_s: float, *, again: bool) -> tuple[Cluster, tuple[events.Action, ...]]:
    """Begin a save, after which the attempt ends so. `limit_s`: how long the save may take."""
    names = tuple(task.name for task in able(cluster))
    return replace(cluster, saving=Saving(ending, again, ending.ended_at + limit_s)), (events.SaveOrdered(names, None),)


def hear(cluster: Cluster, event: events.TaskSaves) -> tuple[Cluster, tuple[events.Action, ...]]:
    """What a training says while a save goes on."""
    saving = cluster.saving
    if saving is None:
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


def name(cluster: Cluster, step: int | None = None) -> tuple[Cluster, tuple[events.Action, ...]]:
    """Name the step after which all save; None: the one after the highest that was said."""
    assert cluster.saving is not None
    step = max(cluster.saving.waits.values()) + 1 if step is None else step
    names = tuple(task.name for task in able(cluster))
    return replace(cluster, saving=replace(cluster.saving, step=step)), (events.SaveOrdered(names, step),)


def ending_of(cluster: Cluster) -> Verdict:
    """How the attempt ends after its save, or after the time of the save is over."""
    saving = cluster.saving
    assert saving is not None
    ending, cause = saving.ending, saving.ending.cause
    if cause is None:
        return ending
    if saving.saved is None:
        return replace(ending, cause=replace(cause, what=f"{cause.what}; the training did not save itself in time"))
    what = f"{cause.what}; the training has saved itself at step {saving.saved}"
    # An engine that starts the job of 42 again must not do so with one that somebody has cancelled.
    code = ending.exit_code if cluster.policy.requeues and ending.outcome is Outcome.CANCELLED else PREEMPTED
    return replace(ending, exit_code=code, cause=replace(cause, what=what), saved=saving.saved)


def as_requested(ending: Verdict | None, event: events.StopRequested) -> Verdict | None:
    """The ending of a run whose host is taken away, as the requested one; None for another ending."""
    if ending is None or ending.outcome is not Outcome.CANCELLED or ending.cause is None or not ending.cause.host:
        return None
    return replace(ending, exit_code=event.code, cause=Cause(event.reason, ending.cause.at))


def hurry(actions: Sequence[events.Action]) -> tuple[events.Action, ...]:
    """The actions after a save that has used up the grace of the user."""
    return tuple(replace(one, grace_s=min(one.grace_s, LATE_GRACE_S)) if isinstance(one, events.Stop) else one for one in actions)
