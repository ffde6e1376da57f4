"""When a cluster must act although nothing happens: end an attempt, or start one. Pure."""

from __future__ import annotations

from typing import Literal

from ..state.cluster import Cluster, Phase, TaskState
from . import readiness, save_order

Kind = Literal["run", "allocation", "unsaved", "save", "prepare", "start", "hang", "name", "resume", "alone"]
"""``save`` begins a save on order, ``name`` names its step, ``unsaved`` gives it up; ``resume`` starts the next attempt, ``alone`` restarts
tasks; the others end the attempt."""
REPORT_S = 5.0
"""A report may reach the controller so much later than it was made (`LogForwarder` of the agent)."""


def next_deadline(cluster: Cluster) -> float | None:
    """When the cluster needs a `Tick`; None: never."""
    return min(deadlines_of(cluster).values(), default=None)


def deadlines_of(cluster: Cluster) -> dict[Kind, float]:
    """The deadlines that still apply, in seconds since the epoch; those that end the attempt come first."""
    limits, phase, tasks = cluster.policy.timeouts, cluster.phase, cluster.tasks.values()
    found: dict[Kind, float] = {}
    # In STOPPING the deadline counts once. It counts again in RESTARTING: a restart may follow even if the time has passed meanwhile.
    if phase is not Phase.DONE and not (phase is Phase.STOPPING and cluster.is_due):
        found |= {"run": cluster.began_at + limits.run_s} if limits.run_s is not None else {}
        found |= {"allocation": cluster.until} if cluster.until is not None and not save_order.is_last(cluster) else {}
    if phase in (Phase.STARTING, Phase.RUNNING):
        found |= _deadlines_of_saves(cluster, found.get("run"))
    if phase is Phase.PREPARING and limits.prepare_s is not None:
        found["prepare"] = cluster.attempt_at + limits.prepare_s
    if phase is Phase.RESTARTING:
        found["resume"] = cluster.resume_at or 0.0
    if phase not in (Phase.STARTING, Phase.RUNNING):
        return found
    if limits.start_s is not None:
        alone = [task.started_at for task in readiness.awaited(cluster) if task.started_at is not None]
        begun = alone if cluster.formed_at is not None else [cluster.attempt_at]
        found |= {"start": min(begun) + limits.start_s} if begun else {}
    if (
        limits.hang_s is not None
        and (cluster.saving is None or cluster.saving.until is None)
        and any(task.state is not TaskState.PENDING and not task.prepares for task in tasks)
    ):
        reports = any(task.trains and task.reported_at is not None for task in tasks)
        found["hang"] = cluster.active_at + limits.hang_s + (REPORT_S if reports else 0.0)
    # A task that is not swept yet still has its port.
    if restarts := [task.restart_at for task in tasks if task.restart_at is not None and task.swept]:
        found["alone"] = min(restarts)
    return found


def _deadlines_of_saves(cluster: Cluster, ends_at: float | None) -> dict[Kind, float]:
    """`ends_at`: when the time of the run is over. The time of an allocation is over early enough for a save (`Host.until`)."""
    ongoing, before_s = cluster.saving, cluster.policy.timeouts.save_before_s
    found: dict[Kind, float] = {}
    if ends_at is not None and before_s is not None and not save_order.is_last(cluster):
        found["save"] = ends_at - before_s
    if ongoing is None:
        return found
    if ongoing.until is not None:
        found["unsaved"] = ongoing.until
    if ongoing.step is None and ongoing.waits_since is not None:
        found["name"] = ongoing.waits_since + save_order.ANSWER_S
    return found
