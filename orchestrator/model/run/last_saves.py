"""The save on order: before a run, a host or a task is taken away, all trainings save after one and the same step. Pure.

First each training waits at the end of a step, and says which step this is. The highest of these steps is named if all have said one.
If one has said none after `ANSWER_S`, such as in a step that needs the one that waits, the step after the highest is named. Then each
goes on to the step, saves, and exits with 42. A training that is further than the step says so, and another step is named.

A task aside, such as an evaluator, trains with no other: it saves at the end of its own step, and the run's save does not depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import TERMINATED
from ..cause import root_cause
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


def is_last(cluster: Cluster) -> bool:
    """Whether a save goes on, after which there is no other attempt."""
    return cluster.saving is not None and not cluster.saving.again


def able(cluster: Cluster) -> list[TaskStatus]:
    """The tasks that have not ended and can save on order; without those aside."""
    return [task for task in cluster.tasks.values() if task.saves and not task.has_ended and not task.is_aside]


def begin(cluster: Cluster, ending: Verdict, limit_s: float | None, *, again: bool) -> tuple[Cluster, tuple[events.Action, ...]]:
    """Begin a save, after which the attempt ends so. `limit_s`: how long the save may take; None: any time."""
    names = tuple(task.name for task in cluster.tasks.values() if task.saves and not task.has_ended)
    until = None if limit_s is None else ending.ended_at + limit_s
    return replace(cluster, saving=Saving(ending, again, until)), (events.SaveOrdered(names, None),)


def take_in(cluster: Cluster, event: events.HostsBack) -> tuple[Cluster, tuple[events.Action, ...]]:
    """Begin the save after which a cluster that trains with fewer workers starts again with more. Nobody waits: the save has any time."""
    if not cluster.is_shrunk or not is_possible(cluster):
        return cluster, ()
    cause = Cause(f"{event.reason}: it gets workers again", event.at)
    ending = Verdict(Outcome.CANCELLED, PREEMPTED, cluster.attempt, cluster.started_at, event.at, cause)
    return begin(cluster, ending, None, again=True)


def begin_aside(cluster: Cluster, task: str) -> tuple[Cluster, tuple[events.Action, ...]]:
    """A task aside got SIGTERM, and not from orch: it saves alone, and restarts alone."""
    return cluster, ((events.SaveOrdered((task,), None),) if cluster.phase in (Phase.STARTING, Phase.RUNNING) else ())


def replace_ending(cluster: Cluster, former: Saving, ending: Verdict, limit_s: float) -> Cluster:
    """The cluster whose save goes on, and after which there is no other attempt any more."""
    until = ending.ended_at + limit_s if former.until is None else min(former.until, ending.ended_at + limit_s)
    return replace(cluster, needs_hosts=False, saving=replace(former, ending=ending, again=False, until=until))


def hear(cluster: Cluster, event: events.TaskSaves) -> tuple[Cluster, tuple[events.Action, ...]]:
    """What a training says while a save goes on."""
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


def name(cluster: Cluster, step: int | None = None) -> tuple[Cluster, tuple[events.Action, ...]]:
    """Name the step after which all save; None: the one after the highest that was said."""
    assert cluster.saving is not None
    step = max(cluster.saving.waits.values()) + 1 if step is None else step
    names = tuple(task.name for task in able(cluster))
    return replace(cluster, saving=replace(cluster.saving, step=step)), (events.SaveOrdered(names, step),)


def has_saved(event: events.TaskExited) -> bool:
    """Whether a task has ended as after its save, or as after the end of its training."""
    return event.code == 0 or (event.code == PREEMPTED and not event.killed)


def failure_of(cluster: Cluster, event: events.TaskExited) -> Cause | None:
    """The failure because of which the training does not save itself; None if the end of this task is none, or the save is there."""
    task, saving = cluster.tasks[event.task], cluster.saving
    if event.stopped or has_saved(event) or task.is_aside or saving is None or saving.saved is not None:
        return None
    return root_cause.of_exit(cluster, task, event.code)


def ending_of(cluster: Cluster, failure: Cause | None = None) -> Verdict:
    """How the attempt ends after its save, or after the time of the save is over, or after a failure."""
    saving = cluster.saving
    assert saving is not None
    ending, cause = saving.ending, saving.ending.cause
    if cause is None:
        return ending
    if saving.saved is None and failure is not None:
        return replace(ending, cause=replace(failure, what=f"failed while the training saved itself ({cause.what})"))
    if saving.saved is None:
        late = replace(ending, cause=replace(cause, what=f"{cause.what}; the training did not save itself in time"))
        # What was not saved is lost, as after any failure: a restart counts.
        return replace(late, outcome=Outcome.FAILED, exit_code=TERMINATED) if saving.again else late
    what = f"{cause.what}; the training has saved itself at step {saving.saved}"
    # An engine that starts the job of 42 again must not do so with one that somebody has cancelled.
    code = ending.exit_code if cluster.policy.requeues and ending.outcome is Outcome.CANCELLED else PREEMPTED
    return replace(ending, exit_code=code, cause=replace(cause, what=what), saved=saving.saved)


def as_requested(ending: Verdict | None, event: events.StopRequested) -> Verdict | None:
    """The ending of a run whose host is taken away, as the requested one; None for another ending."""
    if ending is None or ending.outcome is not Outcome.CANCELLED or ending.cause is None or not ending.cause.host or ending.cause.task:
        return None
    return replace(ending, exit_code=event.code, cause=Cause(event.reason, ending.cause.at))


def hurry(actions: Sequence[events.Action]) -> tuple[events.Action, ...]:
    """The actions after a save that has used up the grace of the user."""
    return tuple(replace(one, grace_s=min(one.grace_s, LATE_GRACE_S)) if isinstance(one, events.Stop) else one for one in actions)
