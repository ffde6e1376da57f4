"""Defines what follows a save on order: how the attempt ends after it, in time or not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import TERMINATED
from ..cause import root_cause
from ..state import events
from ..state.cluster import Cause, Cluster, Outcome, Phase, Verdict
from . import readiness, save_order
from .endings import Step, end
from .restarts import PREEMPTED

LATE_GRACE_S = 1.0
"""The grace of tasks whose training has used up the grace for its save."""


def on_exit(cluster: Cluster, event: events.TaskExited) -> Step:
    """A task has ended while the save goes on."""
    if readiness.has_succeeded(cluster):  # the training was over before the step that was named
        return end(cluster, Outcome.SUCCEEDED, 0, event.at)
    if (has_saved(event) or cluster.tasks[event.task].is_aside) and save_order.able(cluster):
        return cluster, ()
    failure = failure_of(cluster, event)
    if failure is not None and cluster.saving is not None and cluster.saving.again:
        return end(cluster, Outcome.FAILED, root_cause.given_code(failure), event.at, failure, again=True)
    return end_now(cluster, event.at, failure)


def end_now(cluster: Cluster, at: float, failure: Cause | None = None) -> Step:
    """The save is done, or its time is over, or a task has failed: end the attempt. The grace of the user was the time for the save."""
    assert cluster.saving is not None
    again, ending = cluster.saving.again, ending_of(cluster, failure)
    cluster, actions = end(cluster, ending.outcome, ending.exit_code, at, ending.cause, again=again)
    if cluster.ending is not None and cluster.phase is Phase.STOPPING:
        cluster = replace(cluster, ending=replace(cluster.ending, saved=ending.saved))
    if cluster.verdict is not None:
        cluster = replace(cluster, verdict=replace(cluster.verdict, saved=ending.saved))
    return cluster, hurry(actions) if ending.saved is None else actions


def has_saved(event: events.TaskExited) -> bool:
    """True if a task has ended as after its save, or as after the end of its training."""
    return event.code == 0 or (event.code == PREEMPTED and not event.killed)


def failure_of(cluster: Cluster, event: events.TaskExited) -> Cause | None:
    """The failure because of which the training does not save itself; None if the end of this task is none, or the save is there."""
    task, saving = cluster.tasks[event.task], cluster.saving
    if event.stopped or has_saved(event) or task.is_aside or saving is None or saving.saved is not None:
        return None
    return root_cause.of_exit(cluster, task, event.code)


def ending_of(cluster: Cluster, failure: Cause | None = None) -> Verdict:
    """Return how the attempt ends after its save, or after the time of the save is over, or after a failure."""
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
    return replace(ending, exit_code=saving.code, cause=replace(cause, what=what), saved=saving.saved)


def as_requested(ending: Verdict | None, event: events.StopRequested) -> Verdict | None:
    """The ending of a run whose host is taken away, as the requested one; None for another ending."""
    if ending is None or ending.outcome is not Outcome.CANCELLED or ending.cause is None or not ending.cause.host or ending.cause.task:
        return None
    return replace(ending, exit_code=event.code, cause=Cause(event.reason, ending.cause.at))


def hurry(actions: Sequence[events.Action]) -> tuple[events.Action, ...]:
    """The actions after a save that has used up the grace of the user."""
    return tuple(replace(one, grace_s=min(one.grace_s, LATE_GRACE_S)) if isinstance(one, events.Stop) else one for one in actions)
