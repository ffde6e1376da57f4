"""Defines what orders a save: each reason is a function, which `lifecycle.step` calls for an event or a deadline. Pure.

A reason says after which events or deadlines a save begins, how long it may take, and how the attempt is to end then; without a training
that can save, it says what happens instead. A new reason is a new function here.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import TERMINATED
from ..state import events
from ..state.cluster import Cause, Cluster, Outcome, Phase, Verdict
from ..state.task_table import update
from . import restarts, save_order
from .endings import Step, end

AT_ONCE_S = 2.0
"""How long after the first SIGTERM of an engine the last one comes: Slurm sends it to the tasks and the agents of a job one by one."""


def before_the_end(
    cluster: Cluster,
    outcome: Outcome,
    code: int,
    at: float,
    cause: Cause,
    *,
    again: bool = False,
    limit_s: float | None = None,
    by_signal: bool = False,
) -> Step:
    """The attempt is to end: let the training save itself first, if it can. `limit_s`: by default the grace of the user. `by_signal`: see
    `events.StopRequested`.
    """
    policy = cluster.policy
    # An engine that starts the job of 42 again must not do so with one that somebody has cancelled.
    is_cancelled = policy.requeues and outcome is Outcome.CANCELLED and not (policy.is_everywhere and by_signal)
    saved_code = code if is_cancelled else restarts.PREEMPTED
    former, limit_s = cluster.saving, max(cluster.policy.timeouts.grace_s, limit_s or 0.0)
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    if former is not None and former.again and not again:
        return save_order.replace_ending(cluster, former, ending, limit_s, saved_code), ()
    if not save_order.is_possible(cluster):
        return end(cluster, outcome, code, at, cause, again=again)
    return save_order.begin(cluster, ending, limit_s, again=again, code=saved_code)


def on_host_taken(cluster: Cluster, event: events.RunNoted) -> Step:
    """An engine takes the hosts back: no matter who loses one first, the run ends as if it had been asked to.

    A host that is not lent goes away: a training that can do so saves itself before the host is lost.
    """
    cause, ending = Cause(f"{event.line}: it is taken away", event.at, host=event.host), cluster.ending
    first = ending.cause if ending is not None and cluster.policy.is_lent else None
    if ending is not None and first is not None and first.code == TERMINATED and event.at - first.at < AT_ONCE_S:
        # A task was faster than its agent.
        return replace(cluster, ending=replace(ending, outcome=Outcome.CANCELLED, exit_code=TERMINATED, cause=cause), again=False), ()
    if cluster.phase is Phase.STOPPING and not restarts.will_restart(cluster):
        return cluster, ()
    if save_order.is_last(cluster):
        return cluster, ()
    if cluster.policy.is_lent:
        return before_the_end(cluster, Outcome.CANCELLED, TERMINATED, event.at, cause, by_signal=True)
    if not save_order.is_possible(cluster):
        return cluster, ()  # the loss of the host follows
    again = cluster.policy.survives_hosts
    return before_the_end(replace(cluster, needs_hosts=again), Outcome.CANCELLED, TERMINATED, event.at, cause, again=again, by_signal=True)


def on_hosts_back(cluster: Cluster, event: events.HostsBack) -> Step:
    """A cluster that trains with fewer workers starts again with more, after its save. No one waits: the save has any time."""
    if not cluster.is_shrunk or not save_order.is_possible(cluster):
        return cluster, ()
    cause = Cause(f"{event.reason}: it gets workers again", event.at)
    ending = Verdict(Outcome.CANCELLED, restarts.PREEMPTED, cluster.attempt, cluster.started_at, event.at, cause)
    return save_order.begin(cluster, ending, None, again=True, code=restarts.PREEMPTED)


def on_saves(cluster: Cluster, event: events.TaskSaves) -> Step:
    """A training says that it can save, or cannot, or how far its save is; or it got SIGTERM, not from orch, and asks for the save."""
    if event.state == "unable":
        return update(cluster, event.task, saves=False), ()
    if event.state != "asks":
        return save_order.hear(update(cluster, event.task, saves=True).active(event.at), event)
    if cluster.tasks[event.task].is_aside:  # it saves alone, and restarts alone
        return cluster, ((events.SaveOrdered((event.task,), None),) if cluster.phase in (Phase.STARTING, Phase.RUNNING) else ())
    if not save_order.is_possible(cluster):
        return cluster, ()
    cause = Cause(f"{event.task} received SIGTERM", event.at, host=cluster.tasks[event.task].host)
    return before_the_end(cluster, Outcome.CANCELLED, restarts.PREEMPTED, event.at, cause, again=True)
