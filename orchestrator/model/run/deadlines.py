"""When a cluster must act although nothing happens: end an attempt, or start one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from worker.fast_dataclass import dataclass

from . import readiness
from .cluster import Cluster, Phase, TaskState


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time at which `lifecycle.step` must get a `Tick`."""

    at: float
    """Seconds since the epoch."""
    kind: Literal["run", "prepare", "start", "hang", "resume", "alone"]
    """``resume`` starts the next attempt, ``alone`` restarts `task`; the others end the attempt."""
    task: str = ""


def next_deadline(cluster: Cluster) -> float | None:
    """When the cluster needs a `Tick`; None: never."""
    return min((deadline.at for deadline in of(cluster)), default=None)


def of(cluster: Cluster) -> Iterator[Deadline]:
    """All deadlines that still apply; those that end the attempt come first."""
    limits = cluster.policy.timeouts
    # In STOPPING the deadline counts once. It counts again in RESTARTING: a restart may follow even if the time has passed meanwhile.
    is_known = cluster.phase is Phase.STOPPING and cluster.is_due
    if limits.run_s is not None and cluster.phase is not Phase.DONE and not is_known:
        yield Deadline(cluster.began_at + limits.run_s, "run")
    if cluster.phase in (Phase.STOPPING, Phase.DONE):
        return
    if cluster.phase is Phase.RESTARTING:
        yield Deadline(cluster.resume_at or 0.0, "resume")
        return
    if cluster.phase is Phase.PREPARING:
        if limits.prepare_s is not None:
            yield Deadline(cluster.attempt_at + limits.prepare_s, "prepare")
        return
    if limits.start_s is not None and cluster.formed_at is None:
        yield Deadline(cluster.attempt_at + limits.start_s, "start")
    elif limits.start_s is not None and cluster.past:  # of tasks that have restarted alone
        begun = (task.started_at for task in readiness.awaited(cluster))
        yield from (Deadline(at + limits.start_s, "start") for at in begun if at is not None)
    if limits.hang_s is not None and any(task.state is not TaskState.PENDING and not task.prepares for task in cluster.tasks.values()):
        yield Deadline(cluster.active_at + limits.hang_s, "hang")
    # A task that is not swept yet still has its port.
    waiting = (cluster.tasks[name] for name in cluster.alone)
    yield from (Deadline(task.restart_at or 0.0, "alone", task.name) for task in waiting if task.swept)
