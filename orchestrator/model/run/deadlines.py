"""What a cluster does at a time that is known beforehand: give up, or start something again. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from worker.fast_dataclass import dataclass

from . import readiness
from .cluster import Cluster, Phase, TaskState


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at`: seconds since the epoch. ``run``, ``prepare``, ``start`` and ``hang`` end what goes on; ``resume`` is the next attempt,
    ``alone`` that of `task`.
    """

    at: float
    kind: Literal["run", "prepare", "start", "hang", "resume", "alone"]
    task: str = ""


def next_deadline(cluster: Cluster) -> float | None:
    """When the cluster wants a `Tick`; None: never."""
    return min((deadline.at for deadline in of(cluster)), default=None)


def of(cluster: Cluster) -> Iterator[Deadline]:
    """When what is due, as long as it still matters."""
    policy = cluster.policy
    if policy.run_s is not None and cluster.phase is not Phase.DONE and not cluster.is_due:
        yield Deadline(cluster.began_at + policy.run_s, "run")
    if cluster.phase in (Phase.STOPPING, Phase.DONE):
        return
    if cluster.phase is Phase.RESTARTING:
        yield Deadline(cluster.resume_at or 0.0, "resume")
        return
    if cluster.phase is Phase.PREPARING:
        if policy.prepare_s is not None:
            yield Deadline(cluster.attempt_at + policy.prepare_s, "prepare")
        return
    if policy.start_s is not None and cluster.formed_at is None:
        yield Deadline(cluster.attempt_at + policy.start_s, "start")
    elif policy.start_s is not None and cluster.missing:  # which have been started again alone
        begun = (task.started_at for task in readiness.awaited(cluster))
        yield from (Deadline(at + policy.start_s, "start") for at in begun if at is not None)
    if policy.hang_s is not None and not all(task.state is TaskState.PENDING for task in cluster.members):
        yield Deadline(cluster.heard_at + policy.hang_s, "hang")
    # One that is not swept yet still has its port.
    waiting = (cluster.tasks[name] for name in cluster.alone)
    yield from (Deadline(task.restart_at or 0.0, "alone", task.name) for task in waiting if task.swept)
