"""The first cause: the task of a failed attempt because of which the others failed.

1. The end of a task after orch has stopped it does not count.
2. A failure about the task itself wins over an error about a lost peer (`peer_errors`), whatever the clocks of the hosts say.
3. A task that such errors name, directly or through another lost task, wins over a task that no error names.
4. Then time decides.

If no task failed by itself, the lost peer either ended with code 0 while the others needed it, or it has not ended. Then it is the suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.fast_dataclass import dataclass

from ...errors import BROKEN, DEADLINE
from ..run.cluster import Cause, Cluster, Outcome, Secondary, TaskState, TaskStatus, Verdict
from ..strategies import named
from . import peer_errors, remedies
from .peer_errors import Loss

LEFT_EARLY = "ended by itself (exit code 0) before the training was done"
_CRASHES = frozenset(128 + number for number in (4, 6, 7, 8, 11))
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: never the effect of orch's SIGTERM or SIGKILL."""


@dataclass(frozen=True, slots=True)
class End:
    """A failure that orch did not cause."""

    task: TaskStatus
    at: float
    code: int
    loss: Loss | None
    """The lost peer that the failure is about; None: the failure is about the task itself."""


def find_cause(cluster: Cluster, ending: Verdict) -> Verdict:
    """`ending` with the first cause. Call this when all tasks have ended."""
    if ending.outcome is not Outcome.FAILED or ending.cause is None:
        return ending
    ends = _ends(cluster)
    if not ends:
        return ending
    cause = _own_cause(cluster, ends) or _early_leaver(cluster, ends) or _lost(cluster, ends)
    others = sorted((end for end in ends.values() if end.loss is not None and end.task.name != cause.task), key=lambda end: end.at)
    secondary = tuple(Secondary(end.task.name, end.at, end.code, _describe(cluster, end.loss)) for end in others if end.loss)
    status = cluster.tasks[cause.task]
    remedy = remedies.of_stalled(cause.suspect) if cause.suspect else remedies.find(status, serves=serves(cluster, status))
    cause = replace(cause, remedy=remedy, secondary=secondary)
    return replace(ending, cause=cause, exit_code=given_code(cause))


def suspects(cluster: Cluster, task: str) -> tuple[str, ...]:
    """The running tasks that a task's failure is about: orch collects their stacks before it stops them."""
    loss = _loss(cluster.tasks[task])
    return tuple(name for name in _named(cluster, loss, task) if not cluster.tasks[name].has_ended) if loss else ()


def describe_loss(cluster: Cluster, task: str) -> str:
    """The peer that a task has lost: ``worker-1 (its connection was closed)``; empty if the failure is about the task itself."""
    status = cluster.tasks[task]
    loss = _loss(status) if status.code else None
    return _describe(cluster, loss) if loss else ""


def given_code(cause: Cause) -> int:
    """The exit code of orch for a failed task: the task's own code. Two codes have a meaning of orch's, and 0 is success; then 1."""
    return cause.code if cause.code not in (None, 0, DEADLINE, BROKEN) else 1


# --- what counts -------------------------------------------------------------------------------


def _ends(cluster: Cluster) -> dict[str, End]:
    """Every failure that orch did not cause, by task. The failure of an evaluator does not fail the training."""
    found = {task.name: end for task in cluster.tasks.values() if (end := _end(cluster, task)) is not None}
    accused = {peer for end in found.values() if end.loss for peer in end.loss.peers} if found else set()
    for name in accused & cluster.tasks.keys() - found.keys():
        task = cluster.tasks[name]
        # The task was dying when orch stopped it: its peers had lost it before, and orch sends no such signal. A core dump takes time.
        if task.state is TaskState.STOPPED and task.killed and task.code in _CRASHES and task.type != "evaluator":
            found[name] = End(task, task.ended_at or 0.0, task.code or 1, None)
    # A task that was about to restart alone does not count, unless others failed because of it.
    return {name: end for name, end in found.items() if end.task.restart_at is None or name in accused}


def _end(cluster: Cluster, task: TaskStatus) -> End | None:
    if task.type == "evaluator" or not task.has_ended or task.state is TaskState.LOST or task.code is None:
        return None
    loss = _loss(task)
    at = task.failure.at if task.failure else task.ended_at or 0.0
    if task.state is TaskState.STOPPED:
        stopping_at = cluster.stopping_at or at
        # After its exception orch's signal ended the task; without the signal Python would have exited with 1.
        failed = task.failure is not None and (task.evidence.failed_first or at < stopping_at)
        return End(task, at, 1, loss) if failed else None
    if task.code == 0 and not serves(cluster, task):
        return None
    return End(task, at, task.code, loss)


def _loss(task: TaskStatus) -> Loss | None:
    """The peer that a task has lost, by its last error."""
    return peer_errors.read(task.failure, task.evidence.last_words, task.name)


def serves(cluster: Cluster, task: TaskStatus) -> bool:
    """Whether a task is a server that must not end before the training is done."""
    return named(cluster.policy.strategy).role(task.type).serves


# --- the first ---------------------------------------------------------------------------------


def _own_cause(cluster: Cluster, ends: Mapping[str, End]) -> Cause | None:
    """The first task that failed by itself; tasks that others have lost come first."""
    own = {name: end for name, end in ends.items() if end.loss is None}
    if not own:
        return None
    missed = _missed(cluster, ends) & own.keys()
    first = min((own[name] for name in missed or own), key=lambda end: end.at)
    return _cause(first, LEFT_EARLY if first.code == 0 else "failed")


def _early_leaver(cluster: Cluster, ends: Mapping[str, End]) -> Cause | None:
    """A task that ended with 0 though its peers needed it: their errors name it, or name no task and only it has ended."""
    left = {name: task for name, task in cluster.tasks.items() if task.state is TaskState.SUCCEEDED and task.trains}
    missed = _missed(cluster, ends)
    found = [left[name] for name in missed & left.keys()] or ([] if missed else list(left.values()))
    if not found:
        return None
    task = min(found, key=lambda task: task.ended_at or 0.0)
    what = "ended by itself (exit code 0) while its peers still needed it"
    return Cause(what, task.ended_at or 0.0, task.name, task.host, task.code, attempt=task.attempt)


def _lost(cluster: Cluster, ends: Mapping[str, End]) -> Cause:
    """The first task that reported a lost peer, with the suspect if there is one."""
    first = min(ends.values(), key=lambda end: end.at)
    loss = first.loss or Loss("")
    missed = [name for name in cluster.tasks if name in _missed(cluster, {first.task.name: first}) and name not in ends]
    if not missed and not loss.peers:  # the error names no task: suspect the only one that has not failed
        rest = [task.name for task in cluster.tasks.values() if task.trains and task.name not in ends]
        missed = rest if len(rest) == 1 else []
    if not missed:
        return _cause(first, f"failed because it lost {_describe(cluster, loss)}")
    suspect = missed[0]
    held = cluster.tasks[suspect].evidence.condition
    was = f"was {held}" if held else "was still running until orch stopped it"
    return replace(_cause(first, f"failed because it lost {suspect} ({loss.how}), which {was}"), suspect=suspect)


def _cause(end: End, what: str) -> Cause:
    killed = end.task.killed and end.code == end.task.code
    return Cause(what, end.at, end.task.name, end.task.host, end.code, end.task.failure, killed, end.task.attempt)


def _missed(cluster: Cluster, ends: Mapping[str, End]) -> set[str]:
    """The tasks that errors about lost peers name, without those that lost a peer themselves: the ends of all such chains."""
    found = {name for end in ends.values() for name in _named(cluster, end.loss, end.task.name)}
    return {name for name in found if name not in ends or ends[name].loss is None}


def _named(cluster: Cluster, loss: Loss | None, own: str) -> list[str]:
    if loss is None:
        return []
    leader = peer_errors.leader(cluster.tasks)
    named = [*loss.peers, *([leader] if loss.leader and not loss.peers else [])]
    return [name for name in named if name != own and name in cluster.tasks]


def _describe(cluster: Cluster, loss: Loss) -> str:
    """``worker-1 (it stopped sending heartbeats)``, or ``a peer (…)``."""
    named = _named(cluster, loss, "")
    return f"{named[0] if named else 'a peer'} ({loss.how})"
