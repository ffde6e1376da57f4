"""Finds which tasks the cluster waits for: to form, to succeed, to end; and why, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.protocol.messages import NO_PORT
from worker.protocol.task_id import DATA_SERVICE, TENSORBOARD

from ..state.cluster import Cluster, Phase, Policy, TaskState, TaskStatus
from ..state.task_table import table
from ..task_names import group_tasks

LONG_WAIT_S = 60.0
"""If all tasks have run for so long and the cluster has not formed, orch prints advice. A cluster forms within seconds."""


def is_missing(policy: Policy, task: TaskStatus) -> bool:
    """True if the cluster cannot form without this task. An evaluator is in no cluster; a task that has ended for good is not awaited."""
    if task.is_aside or task.prepares or task.state is TaskState.UP:
        return False
    if task.has_ended:
        return task.restart_at is not None
    return policy.opens_ports or task.type in DATA_SERVICE or task.state is TaskState.PENDING


# The last task is asked first: tasks start and end in about the order of their numbers, so the answer comes at once, also for thousands.


def is_formed(cluster: Cluster) -> bool:
    """True if the cluster waits for no task to come up."""
    return not any(is_missing(cluster.policy, task) for task in table(cluster.tasks).last_first())


def has_succeeded(cluster: Cluster) -> bool:
    """True if all tasks that decide the run have succeeded."""
    tasks = table(cluster.tasks).last_first()
    return all(task.state is TaskState.SUCCEEDED or not cluster.policy.role(task).decides for task in tasks)


def is_empty(cluster: Cluster) -> bool:
    """True if no process of any task is left."""
    return all(task.has_ended and task.swept for task in table(cluster.tasks).last_first())


def unended(cluster: Cluster) -> dict[str, float]:
    """The hosts of tasks that have ended, or were told to end, and of which a process may be left: since when the last SIGKILL is due."""
    stopped_at = cluster.ending.ended_at if cluster.phase is Phase.STOPPING and cluster.ending is not None else None
    found: dict[str, float] = {}
    for task in cluster.tasks.values():
        since = task.ended_at if task.has_ended else stopped_at
        if since is not None and not task.swept:
            found[task.host] = max(found.get(task.host, 0.0), since + cluster.policy.timeouts.grace_s)
    return found


def awaited(cluster: Cluster) -> tuple[TaskStatus, ...]:
    """The tasks that the cluster waits for to form; once it has formed, the tasks that restarted alone and are not up yet."""
    missing = (task for task in cluster.tasks.values() if is_missing(cluster.policy, task))
    return tuple(task for task in missing if cluster.formed_at is None or not task.has_ended)


def describe_formation(cluster: Cluster) -> str:
    """``waiting for worker-1 on hostB:41233: no port is open yet (2 of 3 up)``; empty if the cluster waits for no task.

    Also empty for the port of a cluster's only task: no one waits for it, and a program without a strategy never opens it.
    """
    if cluster.phase is Phase.PREPARING:
        return f"waiting for {group_tasks(unprepared(cluster))}: the tasks start when their hosts are prepared"
    late = awaited(cluster)
    if not late:
        return ""
    text = describe_awaited(cluster, late)
    if cluster.formed_at is not None:
        return text
    members = sum(not task.is_aside for task in cluster.members)
    # Tasks without a port are up as soon as they have started.
    up = members - len(late) - len(gone(cluster))
    opens = ""
    if all(task.trains and _reason(task) == NO_PORT for task in late):
        if members == 1:
            return ""
        opens = "; a strategy of tf.distribute opens them" if not up else ""
    return "; ".join(filter(None, (text, describe_gone(cluster)))) + f" ({up} of {members} up{opens})"


def describe_waiting(task: TaskStatus, *, is_alone: bool) -> str:
    """Return what a running task has not done yet, for its row of a table. `is_alone`: no other could form a cluster with it."""
    if task.has_ended or (task.waiting == NO_PORT and is_alone):
        return ""
    return "not in the cluster yet" if task.waiting == NO_PORT else task.waiting


def unprepared(cluster: Cluster) -> list[str]:
    """The tasks that prepare a host and have not succeeded, or have left a process that still runs."""
    tasks = cluster.tasks.values()
    return [task.name for task in tasks if task.prepares and not (task.state is TaskState.SUCCEEDED and task.swept)]


def describe_unformed(cluster: Cluster) -> str:
    """A warning that no cluster was formed and each task did all of the work alone. Empty unless this is certain."""
    members = [task for task in cluster.tasks.values() if task.trains]
    by_themselves = [task.name for task in members if task.state is TaskState.SUCCEEDED]
    if len(members) < 2 or not by_themselves or any(task.up_at is not None or not task.evidence.unclustered for task in members):
        return ""
    each = f"{group_tasks(by_themselves)} {'each ' if len(by_themselves) > 1 else ''}did all of the work alone"
    own = next((task for task in members if task.evidence.tf_config), None)
    also = f"; the TF_CONFIG of {own.name} was not the one that orch gave it: {own.evidence.tf_config}" if own else ""
    return f"no cluster was formed: no task opened its port, so {each}{also}"


def describe_long_wait(cluster: Cluster, at: float) -> str:
    """Advice for a cluster that has not formed for `LONG_WAIT_S` though all of its tasks run; empty for any other cluster."""
    tasks = cluster.members
    running = all(task.started_at is not None and not task.has_ended for task in tasks)
    if cluster.formed_at is not None or not running or at - max(task.started_at or 0.0 for task in tasks) < LONG_WAIT_S:
        return ""
    text = f"all tasks run, and the cluster has not formed for {LONG_WAIT_S:g} s: orch stacks shows where each task is. "
    if any(task.type == "chief" and task.state is TaskState.UP for task in tasks):
        return f"{text}The workers of KerasTuner open no port, and need none; those of a strategy of tf.distribute do"
    return f"{text}fix: build a strategy of tf.distribute in the script, or --strategy none; --set timeouts.start_s=S ends such a run"


def describe_gone(cluster: Cluster) -> str:
    """``worker-0 ended (exit code 0) before it was seen to come up``: the others may wait for this task for ever. Empty: there is none."""
    names = [task.name for task in gone(cluster) if task.state is TaskState.SUCCEEDED]
    were = "it was" if len(names) == 1 else "they were"
    return f"{group_tasks(names)} ended (exit code 0) before {were} seen to come up" if names else ""


def describe_rest(cluster: Cluster) -> str:
    """Return what the tasks do that still run where others are `gone`: ``the other tasks may wait forever``.

    A chief whose workers have all ended may be about to succeed: that of KerasTuner gives trials to its workers, and ends a second later.
    An evaluator waits for no task.
    """
    rest = [task for task in cluster.members if not task.has_ended]
    if any(task.trains and task.type != "chief" for task in rest):
        return "the other tasks may wait forever"
    return f"{group_tasks(task.name for task in rest)} still {'runs' if len(rest) == 1 else 'run'}"


def describe_serving(cluster: Cluster) -> str:
    """Say that all tasks that run stand in `Server.join` of TensorFlow, and wait for work; empty if one of them does anything else.

    While the tasks stop, those count that were running until then.
    """
    # The first task that does anything else is the answer: this is asked at the end of each of many tasks.
    if cluster.formed_at is None or not all(task.serves for task in cluster.tasks.values() if _may_serve(task)):
        return ""
    members = [task for task in cluster.members if task.type not in (TENSORBOARD, *DATA_SERVICE)]
    rest = [task for task in members if _may_serve(task)]
    if not rest or any(task.restart_at for task in members):
        return ""
    names = [task.name for task in rest]
    stand, them = ("stands", "the task") if len(names) == 1 else ("stand", "them")
    text = f"{group_tasks(names)} {stand} in Server.join(), and"
    if any(task.type == "chief" for task in members):
        return f"{text} no task is left that gives {them} work"
    return f"{text} this run has no chief that gives {them} work: a script for parameter servers needs --ps 1 (or more)"


def _may_serve(task: TaskStatus) -> bool:
    is_running = not task.has_ended or task.state is TaskState.STOPPED
    return is_running and not task.prepares and task.type not in (TENSORBOARD, *DATA_SERVICE)


def gone(cluster: Cluster) -> list[TaskStatus]:
    """Tasks that have ended, will not restart, and were never seen to listen. A quick task may have listened unseen."""
    tasks = cluster.members if cluster.policy.opens_ports else ()
    return [task for task in tasks if not task.is_aside and task.has_ended and task.restart_at is None and task.up_at is None]


MOST_PLACES = 3
"""At most so many tasks with the same reason are listed with their places."""


def describe_awaited(cluster: Cluster, tasks: Iterable[TaskStatus]) -> str:
    """``waiting for worker-1..2: no port is open yet``; with several hosts: ``waiting for worker-1 on hostB:41233: no port is …``."""
    by_reason: dict[str, list[str]] = {}
    for task in tasks:
        by_reason.setdefault(_reason(task), []).append(task.name)
    return "waiting for " + "; ".join(f"{_locate(cluster, names)}: {reason}" for reason, names in by_reason.items())


def _reason(task: TaskStatus) -> str:
    return task.waiting or ("not started" if task.state is TaskState.PENDING else NO_PORT)


def _locate(cluster: Cluster, names: Sequence[str]) -> str:
    places = [cluster.places.get(name, "") for name in names]
    if len(names) > MOST_PLACES or not all(places):
        return group_tasks(names)
    return ", ".join(f"{name} on {place}" for name, place in zip(names, places, strict=True))
