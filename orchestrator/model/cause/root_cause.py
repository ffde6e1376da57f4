"""The first cause: the task of a failed attempt because of which the others failed.

1. The end of a task after orch has stopped it does not count.
2. A failure about the task itself wins over an error about a lost peer (`peer_errors`), whatever the clocks of the hosts say.
3. A task that such errors name, directly or through another lost task, wins over a task that no error names.
4. Then time decides. Of two tasks that failed with the same error, the one that the screen has named already stays the first.

If no task failed by itself, the lost peer either ended with code 0 while the others needed it, or it has not ended. Then it is the suspect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from worker.protocol.frames import OWN_CLUSTER
from worker.protocol.messages import Failure
from worker.values.fast_dataclass import dataclass

from ...errors import BROKEN, DEADLINE
from ..state.cluster import Cause, Cluster, Outcome, Secondary, TaskState, TaskStatus, Verdict
from ..task_names import group_tasks
from . import peer_errors, remedies, together
from .peer_errors import Loss

LEFT_EARLY = "ended by itself (exit code 0) before the training was done"
_CRASHES = frozenset(128 + number for number in (4, 6, 7, 8, 11))
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: signals that orch never sends."""
_STOOD = "stopped"
"""How the condition of a stopped process begins: ``stopped (SIGSTOP)``, ``stopped by a debugger``."""
_PLACE = re.compile(r"(?P<path>\S+):(?P<line>\d+)\b")
"""The place in a program at the beginning of a note that a host gave before the start: ``train.py:12``."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that has failed, and not because orch has stopped it."""

    cause: Cause
    """The failure, as if it were the first."""
    loss: Loss | None
    """The lost peer that the failure is about; None: the failure is about the task itself."""


def find_cause(cluster: Cluster, ending: Verdict) -> Verdict:
    """`ending` with the first cause. Call this when all tasks have ended."""
    failed = _failed_tasks(cluster, ending.ended_at) if ending.outcome is Outcome.FAILED else {}
    if not failed:
        return ending
    cause = _first(cluster, failed, told=ending.cause.task if ending.cause else "")
    losses = [(one.cause, one.loss) for one in failed.values() if one.loss is not None and one.cause.task != cause.task]
    others = [Secondary(other.task, other.at, other.code, _describe(cluster, loss)) for other, loss in losses]
    task = cluster.tasks[cause.task]
    remedy = remedies.of_stalled(cause.suspect) if cause.suspect else _remedy(cluster, task)
    remedy = _with_note(remedy, cluster, task)
    cause = replace(cause, remedy=remedy.text, about=remedy.about, secondary=tuple(sorted(others, key=lambda other: other.at)))
    return replace(ending, cause=cause, exit_code=given_code(cause))


def _remedy(cluster: Cluster, task: TaskStatus) -> remedies.Remedy:
    peers = _in_step(cluster)
    if task.failure is not None and len(peers) > 1 and task in peers:
        all_alike = all(is_same_error(task.failure, other.failure) for other in peers)
        found = together.find(task.failure, group_tasks(other.name for other in peers), len(peers), all_alike=all_alike)
        if found != remedies.NONE:
            return found
    return remedies.find(task, serves=cluster.policy.role(task).serves)


def _with_note(remedy: remedies.Remedy, cluster: Cluster, task: TaskStatus) -> remedies.Remedy:
    """The remedy for the failure of `task`, with the note about the line that has failed, or about why no task came to a cluster: the
    report repeats what a host said before the start, after all that was printed meanwhile.

    Of an import that has failed, the remedy says more than the note.
    """
    trace = task.failure.traceback if task.failure is not None else ""
    if task.failure is not None and task.failure.type.endswith(("ImportError", "ModuleNotFoundError")):
        return remedy
    for note in cluster.notes:
        said = f"as a line before the start said: {note}"
        if place := _PLACE.match(note):
            frame = rf'File "(?:[^"]*/)?{re.escape(place["path"].removeprefix("./"))}", line {place["line"]}\b'
            if re.search(frame, trace):
                return remedy._replace(text=said)
        elif OWN_CLUSTER in note and task.code and all(other.up_at is None for other in cluster.members):
            return remedy._replace(text="; ".join(filter(None, (said, remedy.text))))
    return remedy


def _in_step(cluster: Cluster) -> list[TaskStatus]:
    """The tasks that train in step, each with the same program."""
    return [task for task in cluster.tasks.values() if task.trains and cluster.policy.role(task).synchronous]


def of_exit(cluster: Cluster, task: TaskStatus, code: int) -> Cause | None:
    """The failure of a task that has ended with this code; None if the end is no failure."""
    if code == 0 and not cluster.policy.role(task).serves:
        return None
    at = task.failure.at if task.failure is not None else task.ended_at or 0.0
    what = "failed" if code else LEFT_EARLY
    return Cause(what, at, task.name, task.host, code, task.failure, task.killed and code == task.code, task.attempt)


def suspects(cluster: Cluster, task: str) -> tuple[str, ...]:
    """The running tasks that a task's failure is about: orch collects their stacks before it stops them."""
    if together.is_mismatch(cluster.tasks[task].failure):
        return tuple(other.name for other in _in_step(cluster) if not other.has_ended)
    return tuple(name for name in _named(cluster, _loss(cluster.tasks[task]), task) if not cluster.tasks[name].has_ended)


def is_same_error(one: Failure | None, other: Failure | None) -> bool:
    """True if two tasks failed with the same exception. Numbers may differ: they name tasks, devices, addresses and objects."""
    if together.is_mismatch(one) and together.is_mismatch(other):  # each names the call of the other
        return True
    return one is not None and other is not None and _without_numbers(one) == _without_numbers(other)


def has_ended_alike(one: TaskStatus, other: TaskStatus) -> bool:
    """True if two tasks failed with the same exception, or without one with the same code and the same last words."""
    if one.failure is not None or other.failure is not None:
        return is_same_error(one.failure, other.failure)
    words = one.evidence.last_words
    return bool(words) and (one.code, words) == (other.code, other.evidence.last_words)


def describe_loss(cluster: Cluster, task: str) -> str:
    """The peer that a task has lost: ``worker-1 (its connection was closed)``; empty if the failure is about the task itself."""
    loss = _loss(cluster.tasks[task]) if cluster.tasks[task].code else None
    return _describe(cluster, loss) if loss else ""


def given_code(cause: Cause) -> int:
    """The exit code of orch for a failed task: the task's own code. Two codes have a meaning of orch's, and 0 is success; then 1."""
    return cause.code if cause.code not in (None, 0, DEADLINE, BROKEN) else 1


# --- what counts -------------------------------------------------------------------------------


def _failed_tasks(cluster: Cluster, stopped_at: float) -> dict[str, Failed]:
    """Every failure that orch did not cause, by task. An evaluator's does not count. `stopped_at`: when orch began to stop the tasks."""
    tasks = {name: task for name, task in cluster.tasks.items() if task.code is not None and not task.is_aside}
    found = {}
    for name, task in tasks.items():
        if cause := _failure(cluster, task, stopped_at):
            found[name] = Failed(cause, _loss(task))
    accused = {peer for one in found.values() if one.loss is not None for peer in one.loss.peers}
    for name in accused & tasks.keys() - found.keys():
        task = tasks[name]
        # The task was dying when orch stopped it: its peers had lost it before, and orch sends no such signal. A core dump takes time.
        # But a task that stood still then, and that orch has continued so that SIGTERM can end it, has crashed on its way out.
        is_crash = task.killed and task.code in _CRASHES and not task.evidence.condition.startswith(_STOOD)
        if is_crash and (crash := of_exit(cluster, task, task.code or 0)) is not None:
            found[name] = Failed(crash, None)
    # A task that was about to restart alone does not count, unless others failed because of it.
    return {name: one for name, one in found.items() if tasks[name].restart_at is None or name in accused}


def _failure(cluster: Cluster, task: TaskStatus, stopped_at: float) -> Cause | None:
    if task.state is not TaskState.STOPPED:
        return of_exit(cluster, task, task.code or 0)
    # After its exception orch's signal ended the task; without the signal Python would have exited with 1.
    is_own = task.failure is not None and (task.evidence.failed_first or task.failure.at < stopped_at)
    return of_exit(cluster, task, 1) if is_own else None


def _loss(task: TaskStatus) -> Loss | None:
    """The peer that a task has lost, by its last error."""
    return peer_errors.read(task.failure, task.evidence.last_words, task.name)


# --- the first ---------------------------------------------------------------------------------


def _first(cluster: Cluster, failed: Mapping[str, Failed], told: str) -> Cause:
    """The first cause. `told`: the task whose failure ended the attempt, which the screen has named."""
    named = {name for one in failed.values() for name in _named(cluster, one.loss, one.cause.task)}
    # The ends of all chains of losses: a task that lost a peer itself is in the middle of one.
    missed = {name for name in named if name not in failed or failed[name].loss is None}
    own = [one.cause for one in failed.values() if one.loss is None]
    if own:
        candidates = [cause for cause in own if cause.task in missed] or own
        first = min(candidates, key=lambda cause: cause.at)
        return next((cause for cause in candidates if cause.task == told and is_same_error(cause.failure, first.failure)), first)
    succeeded = [task for task in cluster.tasks.values() if task.state is TaskState.SUCCEEDED and task.trains]
    if left := [task for task in succeeded if task.name in missed or not missed]:
        task = min(left, key=lambda task: task.ended_at or 0.0)
        what = "ended by itself (exit code 0) while its peers still needed it"
        return Cause(what, task.ended_at or 0.0, task.name, task.host, 0, attempt=task.attempt)
    return _lost(cluster, failed)


def _lost(cluster: Cluster, failed: Mapping[str, Failed]) -> Cause:
    """The first task that reported a lost peer, with the suspect if there is one."""
    first = min(failed.values(), key=lambda one: one.cause.at)
    loss = first.loss or Loss("")
    running = [name for name in _named(cluster, loss, first.cause.task) if name not in failed]
    if not running and not loss.peers:  # the error names no task: suspect the only one that has not failed
        rest = [task.name for task in cluster.tasks.values() if task.trains and task.name not in failed]
        running = rest if len(rest) == 1 else []
    if not running:
        return replace(first.cause, what=f"failed because it lost {_describe(cluster, loss)}")
    suspect = running[0]
    was = cluster.tasks[suspect].evidence.condition or "still running until orch stopped it"
    return replace(first.cause, what=f"failed because it lost {suspect} ({loss.how}), which was {was}", suspect=suspect)


def _named(cluster: Cluster, loss: Loss | None, own: str) -> list[str]:
    """The tasks that an error of the task `own` names, the likeliest first."""
    if loss is None:
        return []
    names = loss.peers or ((peer_errors.leader(cluster.tasks),) if loss.leader else ())
    return [name for name in names if name != own and name in cluster.tasks]


def _without_numbers(failure: Failure) -> tuple[str, str]:
    return failure.type, re.sub(r"0x[0-9a-f]+|\d+", "#", failure.message)


def _describe(cluster: Cluster, loss: Loss) -> str:
    """``worker-1 (it stopped sending heartbeats)``, or ``a peer (…)``. Of a task that has ended by itself, the error knows only that."""
    names = _named(cluster, loss, "")
    has_ended = bool(names) and cluster.tasks[names[0]].state is TaskState.SUCCEEDED
    return f"{names[0] if names else 'a peer'} ({'it had ended with exit code 0' if has_ended else loss.how})"
