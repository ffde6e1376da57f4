"""What happens next: a pure `step` from (cluster, event) to (cluster, actions).

The policy of a run lives here and nowhere else. Time is in the events; nothing here looks at a clock. `orch ps` folds a
run's recorded events with the same `step` that ran it.

A verdict is decided when the cluster starts STOPPING, and given when the last task is swept. What tasks do in
between can only move the blame to an earlier moment, never to one that we caused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from worker.contract import TaskId

from .cluster import Cause, Cluster, Outcome, Phase, Policy, TaskState, TaskStatus, Verdict
from .events import (
    Action,
    CollectStacks,
    Event,
    Finish,
    HostBroken,
    HostLost,
    Launched,
    StartAttempt,
    Stop,
    StopAsked,
    TaskExited,
    TaskNotStarted,
    TaskReported,
    TaskStarted,
    TaskSwept,
    TaskUp,
    TaskWaiting,
    Tick,
)
from .spec import SINGLE_TASK_STRATEGIES, ClusterSpec

DEADLINE_CODE, BROKEN_CODE = 124, 125


def policy_of(spec: ClusterSpec) -> Policy:
    """What a spec says about life and death."""
    limits = spec.timeouts
    opens_ports = spec.strategy not in SINGLE_TASK_STRATEGIES and spec.program.kind != "command"
    return Policy(spec.strategy, limits.start_s, limits.run_s, limits.grace_s, opens_ports)


def new(policy: Policy, hosts_by_task: Mapping[str, str]) -> Cluster:
    """A cluster whose tasks are all still to be started."""
    return Cluster(policy, {name: TaskStatus(name, host) for name, host in hosts_by_task.items()})


def step(cluster: Cluster, event: Event) -> tuple[Cluster, tuple[Action, ...]]:
    """What the cluster is after `event`, and what has to be done. Events of another attempt, and after the end, change nothing."""
    if cluster.is_over or _is_stale(cluster, event):
        return cluster, ()
    match event:
        case Launched():
            return replace(cluster, started_at=event.at), (StartAttempt(event.attempt, tuple(cluster.tasks)),)
        case TaskStarted():
            cluster = _update(cluster, event.task, state=TaskState.STARTED, pid=event.pid, started_at=event.at, waiting="")
            return _form(cluster, event.at), ()
        case TaskUp():
            cluster = _update(cluster, event.task, state=TaskState.UP, up_at=event.at, waiting="")
            return _form(cluster, event.at), ()
        case TaskWaiting():
            return _update(cluster, event.task, waiting=event.reason), ()
        case TaskReported():
            return _update(cluster, event.task, report=event.values, reported_at=event.at), ()
        case TaskNotStarted():
            state = TaskState.STOPPED if cluster.phase is Phase.STOPPING else TaskState.FAILED
            cluster = _update(cluster, event.task, state=state, ended_at=event.at, swept=True)
            cause = Cause(f"could not be started: {event.reason}", event.at, event.task, cluster.tasks[event.task].host)
            return _end(cluster, Outcome.BROKEN, BROKEN_CODE, event.at, cause)
        case TaskExited():
            return _on_exit(cluster, event)
        case TaskSwept():
            return _finish_if_empty(_update(cluster, event.task, swept=True), event.at)
        case HostLost():
            return _on_host_lost(cluster, event)
        case HostBroken():
            return _end(cluster, Outcome.BROKEN, BROKEN_CODE, event.at, Cause(event.reason, event.at, host=event.host))
        case StopAsked():
            if cluster.phase is Phase.STOPPING:
                return _hurry(cluster)
            return _end(cluster, Outcome.CANCELLED, event.code, event.at, Cause(event.reason, event.at))
        case Tick():
            return _on_tick(cluster, event.at)


def next_deadline(cluster: Cluster) -> float | None:
    """When the cluster wants a `Tick`; None: never."""
    return min((at for at, _ in _deadlines(cluster)), default=None)


def awaited(cluster: Cluster) -> tuple[TaskStatus, ...]:
    """The tasks that the cluster's formation still waits for."""
    if cluster.formed_at is not None:
        return ()
    return tuple(task for task in _members(cluster) if not _has_come_up(cluster, task))


def describe_formation(cluster: Cluster) -> str:
    """``waiting for worker-1: connection refused (2 of 3 up)``; empty if nobody is waited for."""
    late = awaited(cluster)
    members = len(list(_members(cluster)))
    return f"{describe_awaited(late)} ({members - len(late)} of {members} up)" if late else ""


def _is_stale(cluster: Cluster, event: Event) -> bool:
    if getattr(event, "attempt", cluster.attempt) != cluster.attempt:
        return True
    task = getattr(event, "task", None)
    if task is None:
        return False
    if task not in cluster.tasks:
        return True
    return cluster.tasks[task].has_ended and not isinstance(event, (TaskSwept, TaskReported))


def _update(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    return replace(cluster, tasks={**cluster.tasks, name: replace(cluster.tasks[name], **changes)})


# --- forming -----------------------------------------------------------------------------------


def _members(cluster: Cluster) -> Iterable[TaskStatus]:
    """The tasks without which there is no cluster. An evaluator joins nobody."""
    return (task for task in cluster.tasks.values() if task.type != "evaluator")


def _has_come_up(cluster: Cluster, task: TaskStatus) -> bool:
    return task.state is TaskState.UP or task.has_ended or (task.state is TaskState.STARTED and not cluster.policy.opens_ports)


def _form(cluster: Cluster, at: float) -> Cluster:
    if cluster.phase is not Phase.STARTING or not all(_has_come_up(cluster, task) for task in _members(cluster)):
        return cluster
    return replace(cluster, phase=Phase.RUNNING, formed_at=at)


# --- ending ------------------------------------------------------------------------------------


def _on_exit(cluster: Cluster, event: TaskExited) -> tuple[Cluster, tuple[Action, ...]]:
    state = TaskState.STOPPED if event.stopped else TaskState.FAILED if event.code else TaskState.SUCCEEDED
    cluster = _update(cluster, event.task, state=state, ended_at=event.at, code=event.code, failure=event.failure)
    if cluster.phase is Phase.STOPPING:
        return _blame_earlier(cluster, event), ()
    cluster = _form(cluster, event.at)
    cause = _cause_of_exit(cluster, event)
    if cause is not None:
        return _end(cluster, Outcome.FAILED, _given_code(cause), event.at, cause)
    if all(task.state is TaskState.SUCCEEDED for task in _deciders(cluster)):
        return _end(cluster, Outcome.SUCCEEDED, 0, event.at)
    return cluster, ()


def _deciders(cluster: Cluster) -> list[TaskStatus]:
    """The tasks whose success is the run's: the chief under a parameter server, otherwise all that train."""
    types = ("chief",) if cluster.policy.strategy == "parameter_server" else ("chief", "worker")
    return [task for task in cluster.tasks.values() if task.type in types]


def _cause_of_exit(cluster: Cluster, event: TaskExited) -> Cause | None:
    """The failure that this exit is, if it is one. A failing evaluator does not fail the training."""
    task = cluster.tasks[event.task]
    # Stopped, though nobody here asked: its agent has lost us, or was told to end. That agent's end is the cause.
    if task.type == "evaluator" or event.stopped:
        return None
    serves = cluster.policy.strategy == "parameter_server" and task.type != "chief"
    if event.code == 0 and not serves:
        return None
    what = "ended by itself (exit code 0) before the chief was done" if event.code == 0 else "failed"
    at = event.failure.at if event.failure else event.at
    return Cause(what, at, event.task, task.host, event.code, event.failure)


def _given_code(cause: Cause) -> int:
    """A failing task's code as ours. 124 and 125 mean something else in our table, and 0 would say success."""
    return cause.code if cause.code not in (None, 0, DEADLINE_CODE, BROKEN_CODE) else 1


def _blame_earlier(cluster: Cluster, event: TaskExited) -> Cluster:
    """A task that had failed before the one that was blamed is the cause, though we heard of it later."""
    ending = cluster.ending
    if ending is None or ending.outcome is not Outcome.FAILED or ending.cause is None or event.code == 0:
        return cluster
    asked_at = cluster.stopping_at or event.at
    if event.stopped and not (event.failure and event.failure.at < asked_at):
        return cluster
    # A task that we stopped after its exception ended by our signal; its own end would have been Python's code 1.
    cause = _cause_of_exit(cluster, replace(event, stopped=False, code=1) if event.stopped else event)
    if cause is None or cause.at >= ending.cause.at:
        return cluster
    return replace(cluster, ending=replace(ending, cause=cause, exit_code=_given_code(cause)))


def _on_host_lost(cluster: Cluster, event: HostLost) -> tuple[Cluster, tuple[Action, ...]]:
    lost = [task for task in cluster.tasks.values() if task.host == event.host and not (task.has_ended and task.swept)]
    tasks = dict(cluster.tasks)
    for task in lost:
        state = task.state if task.has_ended else TaskState.LOST
        tasks[task.name] = replace(task, state=state, ended_at=task.ended_at or event.at, swept=True)
    cluster = replace(cluster, tasks=tasks)
    if cluster.phase is Phase.STOPPING:
        return _finish_if_empty(cluster, event.at)
    return _end(cluster, Outcome.BROKEN, BROKEN_CODE, event.at, Cause(f"lost host {event.host}: {event.reason}", event.at, host=event.host))


def _end(cluster: Cluster, outcome: Outcome, code: int, at: float, cause: Cause | None = None) -> tuple[Cluster, tuple[Action, ...]]:
    """Decide the end and stop what still runs. An end that has been decided stays."""
    if cluster.phase is Phase.STOPPING:
        return _finish_if_empty(cluster, at)
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    cluster = replace(cluster, phase=Phase.STOPPING, stopping_at=at, ending=ending)
    running = _running(cluster)
    if running:
        return cluster, (Stop(running, cluster.policy.grace_s),)
    return _finish_if_empty(cluster, at)


def _running(cluster: Cluster) -> tuple[str, ...]:
    return tuple(task.name for task in cluster.tasks.values() if not task.has_ended)


def _hurry(cluster: Cluster) -> tuple[Cluster, tuple[Action, ...]]:
    running = tuple(task.name for task in cluster.tasks.values() if not task.swept)
    return replace(cluster, hurried=True), (Stop(running, 0.0),)


def _finish_if_empty(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    if cluster.phase is not Phase.STOPPING or cluster.ending is None or not all(t.has_ended and t.swept for t in cluster.tasks.values()):
        return cluster, ()
    verdict = replace(cluster.ending, ended_at=max(at, cluster.started_at))
    return replace(cluster, phase=Phase.DONE, verdict=verdict), (Finish(verdict),)


# --- deadlines ---------------------------------------------------------------------------------


def _deadlines(cluster: Cluster) -> list[tuple[float, str]]:
    """When which limit is reached, as long as it still matters."""
    found: list[tuple[float, str]] = []
    if cluster.phase in (Phase.STARTING, Phase.RUNNING):
        policy = cluster.policy
        if policy.start_s is not None and cluster.formed_at is None:
            found.append((cluster.started_at + policy.start_s, "start"))
        if policy.run_s is not None:
            found.append((cluster.started_at + policy.run_s, "run"))
    return found


def _on_tick(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    due = [which for when, which in _deadlines(cluster) if when <= at]
    if not due:
        return cluster, ()
    if due[0] == "start":
        late = awaited(cluster)
        what = f"the cluster had not formed {cluster.policy.start_s:g} s after its start (--start-timeout); {describe_awaited(late)}"
        cause = Cause(what, at, host=late[0].host if late else "")
    else:
        cause = Cause(f"the run was not over after {cluster.policy.run_s:g} s (--timeout)", at)
    cluster, actions = _end(cluster, Outcome.TIMED_OUT, DEADLINE_CODE, at, cause)
    return cluster, (CollectStacks(_running(cluster)), *actions)


def describe_awaited(tasks: Iterable[TaskStatus]) -> str:
    """``waiting for worker-1, worker-2: connection refused``; tasks that wait for the same reason stand together."""
    by_reason: dict[str, list[str]] = {}
    for task in tasks:
        reason = task.waiting or ("not started" if task.state is TaskState.PENDING else "no port is open yet")
        by_reason.setdefault(reason, []).append(task.name)
    return "waiting for " + "; ".join(f"{group_tasks(names)}: {reason}" for reason, names in by_reason.items())


def group_tasks(names: Iterable[str]) -> str:
    """Task names with runs of indices folded: ``chief-0, worker-0..3, worker-5``."""
    spans: list[tuple[str, int, int]] = []
    for task in (TaskId.parse(name) for name in names):
        if spans and spans[-1][0] == task.type and spans[-1][2] == task.index - 1:
            spans[-1] = (task.type, spans[-1][1], task.index)
        else:
            spans.append((task.type, task.index, task.index))
    return ", ".join(f"{kind}-{first}" if first == last else f"{kind}-{first}..{last}" for kind, first, last in spans)
