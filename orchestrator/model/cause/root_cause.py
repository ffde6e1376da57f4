"""Who failed first: of all tasks of an attempt that has failed, the one that the others failed because of.

Order of belief: what a task did after we had stopped it counts for nothing; a failure that is about the task itself goes before one that is
about a lost peer (`losses`), whatever the clocks of their hosts say; a peer that such an error names, or that is named by
the one it names, goes before one that nobody names; then time decides. If nobody failed of its own accord, the peer that was lost
either ended with code 0 while the others still needed it, or had not ended at all: then it is the suspect, and the report says so.
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
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: no answer to a SIGTERM or SIGKILL of ours."""


@dataclass(frozen=True, slots=True)
class End:
    """A failure of a task's own accord. `loss`: it is about a peer."""

    task: TaskStatus
    at: float
    code: int
    loss: Loss | None


def settle(cluster: Cluster, ending: Verdict) -> Verdict:
    """The verdict that `cluster` is heading for, with the true first cause. To be asked when all tasks have ended."""
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
    cause = replace(cause, remedy=remedy, secondary=secondary, instead=_explain_other(cluster, ends, ending.cause, cause))
    return replace(ending, cause=cause, exit_code=given_code(cause))


def _explain_other(cluster: Cluster, ends: Mapping[str, End], seen: Cause, cause: Cause) -> str:
    """Why the cause is not the task whose end was seen, and told, first; empty if it is."""
    end = ends.get(seen.task)
    if end is None or seen.task == cause.task:
        return ""
    if end.loss is not None:
        why = f"its error is about a lost peer, {_describe(cluster, end.loss)}"
    elif cause.at < end.at:
        why = f"{cause.task} had failed {max(0.1, end.at - cause.at):.1f} s earlier"
    else:
        why = f"the errors of the others are about {cause.task}"
    return f"{seen.task}, whose end was seen first: {why}"


def suspects(cluster: Cluster, task: str) -> tuple[str, ...]:
    """Those that a task's failure is about and that still run: worth asking where they are before they are stopped."""
    loss = _loss(cluster.tasks[task])
    return tuple(name for name in _named(cluster, loss, task) if not cluster.tasks[name].has_ended) if loss else ()


def describe_loss(cluster: Cluster, task: str) -> str:
    """Whom a task's failure is about and why, ``worker-1 (its connection was closed)``; empty if it is about the task itself."""
    status = cluster.tasks[task]
    loss = _loss(status) if status.code else None
    return _describe(cluster, loss) if loss else ""


def given_code(cause: Cause) -> int:
    """A failing task's code as ours. Two mean something else in our table, and 0 would say success."""
    return cause.code if cause.code not in (None, 0, DEADLINE, BROKEN) else 1


# --- what counts -------------------------------------------------------------------------------


def _ends(cluster: Cluster) -> dict[str, End]:
    """Every failure that we did not cause. A failing evaluator does not fail the training."""
    found = {}
    for task in cluster.tasks.values():
        end = _end(cluster, task)
        if end is not None:
            found[task.name] = end
    accused = {peer for end in found.values() if end.loss for peer in end.loss.peers} if found else set()
    for name in accused & cluster.tasks.keys() - found.keys():
        task = cluster.tasks[name]
        # It was dying when we stopped it: its peers had missed it before, and we send no such signal. A core file takes its time.
        if task.state is TaskState.STOPPED and task.killed and task.code in _CRASHES and task.type != "evaluator":
            found[name] = End(task, task.ended_at or 0.0, task.code or 1, None)
    # One that was about to come back alone had been forgiven, unless the others failed because of it.
    return {name: end for name, end in found.items() if end.task.restart_at is None or name in accused}


def _end(cluster: Cluster, task: TaskStatus) -> End | None:
    if task.type == "evaluator" or not task.has_ended or task.state is TaskState.LOST or task.code is None:
        return None
    loss = _loss(task)
    at = task.failure.at if task.failure else task.ended_at or 0.0
    if task.state is TaskState.STOPPED:
        stopping_at = cluster.stopping_at or at
        # After its exception it ended by our signal; its own end would have been Python's code 1.
        failed = task.failure is not None and (task.evidence.failed_first or at < stopping_at)
        return End(task, at, 1, loss) if failed else None
    if task.code == 0 and not serves(cluster, task):
        return None
    return End(task, at, task.code, loss)


def _loss(task: TaskStatus) -> Loss | None:
    """Whom a task has lost, by what it said last."""
    return peer_errors.read(task.failure, task.evidence.last_words, task.name)


def serves(cluster: Cluster, task: TaskStatus) -> bool:
    """Whether a task is a server that is not to end before the training is done."""
    return named(cluster.policy.strategy).role(task.type).serves


# --- who it was --------------------------------------------------------------------------------


def _own_cause(cluster: Cluster, ends: Mapping[str, End]) -> Cause | None:
    """The first of those that failed for a reason of their own; those that are missed by others before those that nobody misses."""
    own = {name: end for name, end in ends.items() if end.loss is None}
    if not own:
        return None
    missed = _missed(cluster, ends) & own.keys()
    first = min((own[name] for name in missed or own), key=lambda end: end.at)
    what = LEFT_EARLY if first.code == 0 else "failed"
    return _cause(first, what)


def _early_leaver(cluster: Cluster, ends: Mapping[str, End]) -> Cause | None:
    """A task that has succeeded, though its peers still needed it: if they name it, or if they name nobody and it alone has left."""
    left = {name: task for name, task in cluster.tasks.items() if task.state is TaskState.SUCCEEDED and task.trains}
    missed = _missed(cluster, ends)
    found = [left[name] for name in missed & left.keys()] or ([] if missed else list(left.values()))
    if not found:
        return None
    task = min(found, key=lambda task: task.ended_at or 0.0)
    what = "ended by itself (exit code 0) while its peers still needed it"
    return Cause(what, task.ended_at or 0.0, task.name, task.host, task.code, attempt=task.attempt)


def _lost(cluster: Cluster, ends: Mapping[str, End]) -> Cause:
    """All that is known is who said first that somebody was lost."""
    first = min(ends.values(), key=lambda end: end.at)
    loss = first.loss or Loss("")
    missed = [name for name in cluster.tasks if name in _missed(cluster, {first.task.name: first}) and name not in ends]
    if not missed and not loss.peers:  # it names nobody; whoever has not failed is what is left
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
    """Whom the lost-peer errors name, and whom those name in turn that lost a peer themselves: the ends of all such chains."""
    found: set[str] = set()
    for end in ends.values():
        if end.loss is not None:
            found.update(_named(cluster, end.loss, end.task.name))
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
