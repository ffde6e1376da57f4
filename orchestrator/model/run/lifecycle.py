"""What happens next: a pure `step` from (cluster, event) to (cluster, actions).

The policy of a run lives here and nowhere else. Time is in the events; nothing here looks at a clock. `orch ps` folds a
run's recorded events with the same `step` that ran it.

A verdict is decided when the cluster starts STOPPING, and given when the last task is swept, unless another attempt follows
(`restarts` knows when). By then all is known that tasks have done by themselves, and `blame` says which of it came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.task_files import INPUT

from ...errors import BROKEN, DEADLINE
from ..cause import root_cause
from ..input import input_counts
from ..planning.plan import Plan
from ..spec import ClusterSpec
from ..strategies import named
from . import deadlines, readiness, restarts, task_counts
from .cluster import Cause, Cluster, Outcome, Phase, Policy, TaskState, TaskStatus, Verdict
from .events import (
    Action,
    CheckpointSeen,
    CollectStacks,
    Event,
    Finish,
    Heard,
    HostBroken,
    HostLost,
    HostReady,
    Hurry,
    Launched,
    RestartAsked,
    RunBegun,
    RunNoted,
    StartAttempt,
    Stop,
    StopAsked,
    TaskBegan,
    TaskEvent,
    TaskExited,
    TaskNotStarted,
    TaskReported,
    TaskSpoke,
    TaskStarted,
    TaskSwept,
    TaskUp,
    TaskWaiting,
    TemplateReady,
    Tick,
)


def policy_of(spec: ClusterSpec) -> Policy:
    """What a spec says about life and death."""
    limits = spec.timeouts
    # A command may be anything. Who gives it a time to come up says that it opens its port.
    opens_ports = named(spec.strategy).opens_ports and (spec.program.kind != "command" or limits.start_s is not None)
    return Policy(spec.strategy, limits.start_s, limits.run_s, limits.grace_s, opens_ports, limits.hang_s, spec.restart, limits.prepare_s)


def new(policy: Policy, hosts_by_task: Mapping[str, str], seed: str = "", places: Mapping[str, str] | None = None) -> Cluster:
    """A cluster whose tasks are all still to be started. `seed`: the run's id, by which its pauses differ from those of others.

    `places`: see `Cluster`.
    """
    tasks = {name: TaskStatus(name, host) for name, host in hosts_by_task.items()}
    return task_counts.recount(Cluster(policy, tasks, seed=seed, places=places or {}))


def of_plan(planned: Plan) -> Cluster:
    """The cluster of a plan, before its start."""
    return new(policy_of(planned.spec), planned.hosts_by_task, planned.run_id, planned.places)


def step(cluster: Cluster, event: Event) -> tuple[Cluster, tuple[Action, ...]]:
    """What the cluster is after `event`, and what has to be done. Events of another attempt, and after the end, change nothing."""
    if cluster.is_over or _is_stale(cluster, event):
        return cluster, ()
    match event:
        case Launched():
            began_at = event.at if event.began_at is None else event.began_at
            return _start(replace(cluster, began_at=began_at, started_at=event.at), event.at)
        case TaskStarted():
            changes = {"state": TaskState.STARTED, "pid": event.pid, "started_at": event.at, "waiting": ""}
            changes |= {"step_before": cluster.reached, "saved_before": cluster.saved_at}
            return _form(_hear(task_counts.update(cluster, event.task, **changes), event.at), event.at), ()
        case TaskUp():
            cluster = task_counts.update(cluster, event.task, state=TaskState.UP, up_at=event.at, waiting="")
            return _form(_hear(cluster, event.at), event.at), ()
        case TaskWaiting():
            return task_counts.update(cluster, event.task, waiting=event.reason), ()
        case TaskReported():
            return _on_report(cluster, event), ()
        case TaskNotStarted():
            return _on_not_started(cluster, event)
        case TaskExited():
            return _on_exit(cluster, event)
        case TaskSwept():
            return _on_swept(cluster, event)
        case HostLost():
            return _on_host_lost(cluster, event)
        case HostBroken():
            return _end(cluster, Outcome.BROKEN, BROKEN, event.at, Cause(event.reason, event.at, host=event.host))
        case StopAsked():
            return _on_stop_asked(cluster, event)
        case RestartAsked():
            return _on_restart_asked(cluster, event)
        case Heard():
            return _hear(cluster, event.at), ()
        case CheckpointSeen():
            return replace(cluster, saved_at=max(cluster.saved_at, event.at)), ()
        case Tick():
            return _on_tick(cluster, event.at)
        case RunBegun() | RunNoted() | HostReady() | TemplateReady() | TaskBegan() | TaskSpoke():
            return cluster, ()  # for people and for the timeline


def _is_stale(cluster: Cluster, event: Event) -> bool:
    if isinstance(event, Launched):
        return event.attempt != cluster.attempt
    if not isinstance(event, TaskEvent):
        return False
    task = cluster.tasks.get(event.task)
    if task is None or event.attempt != task.attempt:
        return True
    return task.has_ended and not isinstance(event, (TaskSwept, TaskReported))


def _on_report(cluster: Cluster, event: TaskReported) -> Cluster:
    values = dict(event.values)
    found = input_counts.read(values.pop(INPUT)) if INPUT in values else cluster.tasks[event.task].input
    cluster = task_counts.update(cluster, event.task, report=values, reported_at=event.at, input=found)
    reached = cluster.reached
    step = values.get("step")
    # A bool is a number in Python, and NaN compares with nothing.
    if isinstance(step, (int, float)) and not isinstance(step, bool) and step == step:
        reached = step if reached is None else max(reached, step)
    cluster = replace(cluster, reached=reached)
    return _hear(cluster, event.at) if cluster.tasks[event.task].trains else cluster


def _hear(cluster: Cluster, at: float) -> Cluster:
    """Some task lives: what is silent from now on hangs from now on."""
    return replace(cluster, heard_at=max(cluster.heard_at, at))


def _form(cluster: Cluster, at: float) -> Cluster:
    if cluster.phase is not Phase.STARTING or cluster.missing:
        return cluster
    return replace(cluster, phase=Phase.RUNNING, formed_at=at)


# --- starting ----------------------------------------------------------------------------------


def _start(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    """Start the whole cluster: first the tasks that prepare a host and have not succeeded yet, or, if there is none, all others."""
    unprepared = tuple(readiness.unprepared(cluster))
    names = unprepared or tuple(task.name for task in cluster.members)
    phase = Phase.PREPARING if unprepared else Phase.STARTING
    return replace(cluster, phase=phase, attempt_at=at, heard_at=at), (StartAttempt(cluster.attempt, names),)


def _withdraw_members(cluster: Cluster, at: float) -> Cluster:
    """The members of a cluster whose preparation has failed will not start."""
    withdrawn = {task.name: replace(task, state=TaskState.STOPPED, ended_at=at, swept=True) for task in cluster.members}
    return task_counts.recount(replace(cluster, tasks={**cluster.tasks, **withdrawn}))


# --- ending ------------------------------------------------------------------------------------


def _on_not_started(cluster: Cluster, event: TaskNotStarted) -> tuple[Cluster, tuple[Action, ...]]:
    state = TaskState.STOPPED if cluster.phase is Phase.STOPPING else TaskState.FAILED
    cluster = task_counts.update(cluster, event.task, state=state, ended_at=event.at, swept=True)
    if cluster.phase is Phase.STOPPING:  # its start was withdrawn
        return _finish_if_empty(cluster, event.at)
    task = cluster.tasks[event.task]
    cause = Cause(f"could not be started: {event.reason}", event.at, task.name, task.host, attempt=task.attempt)
    return _end(cluster, Outcome.BROKEN, BROKEN, event.at, cause)


def _on_exit(cluster: Cluster, event: TaskExited) -> tuple[Cluster, tuple[Action, ...]]:
    state = TaskState.STOPPED if event.stopped else TaskState.FAILED if event.code else TaskState.SUCCEEDED
    changes = {"state": state, "ended_at": event.at, "code": event.code, "killed": event.killed, "failure": event.failure}
    cluster = task_counts.update(cluster, event.task, **changes, evidence=event.evidence)
    if cluster.phase is Phase.STOPPING:
        return cluster, ()
    # Stopped, though nobody here asked: its agent has lost us, or was told to end. That agent's end is the cause.
    cause = None if event.stopped else _cause_of_exit(cluster, event)
    task = cluster.tasks[event.task]
    if cause is not None and named(cluster.policy.strategy).role(task.type).restarts_alone:
        cluster, pause = _plan_alone(cluster, task, cause)
        if pause is not None:
            return cluster, ()  # and still waited for, if the cluster has not formed
    cluster = _form(cluster, event.at)
    if cause is not None and task.type != "evaluator":
        stalled = root_cause.suspects(cluster, task.name)
        cluster, actions = _end(cluster, Outcome.FAILED, root_cause.given_code(cause), event.at, cause, again=True)
        return cluster, ((CollectStacks(stalled), *actions) if stalled else actions)
    if not cluster.undecided:
        return _end(cluster, Outcome.SUCCEEDED, 0, event.at)
    return cluster, ()


def _plan_alone(cluster: Cluster, task: TaskStatus, cause: Cause) -> tuple[Cluster, float | None]:
    """Have a task start again alone, if it may, after the pause that is returned."""
    past = (*cluster.past, restarts.of_task(cluster, task, cause))
    pause = restarts.pause_after(cluster.policy.restart, restarts.relevant(past, task.name), f"{cluster.seed}/{task.name}")
    if pause is None:
        return cluster, None
    cluster = replace(cluster, past=past, alone=(*cluster.alone, task.name))
    return task_counts.update(cluster, task.name, restart_at=cause.at + pause), pause


def _cause_of_exit(cluster: Cluster, event: TaskExited) -> Cause | None:
    """The failure that this exit is, if it is one."""
    task = cluster.tasks[event.task]
    if event.code == 0 and not root_cause.serves(cluster, task):
        return None
    what = root_cause.LEFT_EARLY if event.code == 0 else "failed"
    at = event.failure.at if event.failure else event.at
    return Cause(what, at, event.task, task.host, event.code, event.failure, event.killed, task.attempt)


def _on_swept(cluster: Cluster, event: TaskSwept) -> tuple[Cluster, tuple[Action, ...]]:
    task = cluster.tasks[event.task]
    if event.left:
        cluster = replace(cluster, remains=(*cluster.remains, f"{task.name} on {task.host}: {event.left}"))
    if task.has_ended:
        cluster = task_counts.update(cluster, task.name, swept=True)
        if cluster.phase is Phase.PREPARING and not readiness.unprepared(cluster):
            return _start(cluster, event.at)
        return _finish_if_empty(cluster, event.at)
    # It has not ended, and will not: nothing may start beside it, on its port and its devices.
    cluster = task_counts.update(cluster, task.name, state=TaskState.LOST, ended_at=event.at, swept=True)
    cause = Cause(f"has outlived SIGKILL: {event.left}", event.at, task.name, task.host, attempt=task.attempt)
    return _end(cluster, Outcome.BROKEN, BROKEN, event.at, cause)


def _on_host_lost(cluster: Cluster, event: HostLost) -> tuple[Cluster, tuple[Action, ...]]:
    lost = [task for task in cluster.tasks.values() if task.host == event.host and not (task.has_ended and task.swept)]
    for task in lost:
        state = task.state if task.has_ended else TaskState.LOST
        cluster = task_counts.update(cluster, task.name, state=state, ended_at=task.ended_at or event.at, swept=True)
    cause = Cause(f"lost host {event.host}: {event.reason}", event.at, host=event.host)
    if cluster.phase is Phase.STOPPING:
        ending = cluster.ending
        if ending and ending.outcome is Outcome.FAILED and ending.cause and event.overdue_at and event.overdue_at < ending.cause.at:
            # Its peers have noticed before us, and failed because of it.
            ending = replace(ending, outcome=Outcome.BROKEN, exit_code=BROKEN, cause=replace(cause, at=event.overdue_at))
            cluster = replace(cluster, ending=ending)
    return _end(cluster, Outcome.BROKEN, BROKEN, event.at, cause)


def _on_stop_asked(cluster: Cluster, event: StopAsked) -> tuple[Cluster, tuple[Action, ...]]:
    if cluster.phase is Phase.STOPPING and not restarts.comes_again(cluster, event.at):
        running = tuple(task.name for task in cluster.tasks.values() if not task.swept)
        return replace(cluster, hurried=True, is_due=True), (Stop(running, 0.0), Hurry())
    return _end(cluster, Outcome.CANCELLED, event.code, event.at, Cause(event.reason, event.at))


def _on_restart_asked(cluster: Cluster, event: RestartAsked) -> tuple[Cluster, tuple[Action, ...]]:
    if cluster.phase is Phase.RESTARTING:
        return _begin_attempt(cluster, event.at)
    if cluster.phase is Phase.STOPPING:
        return cluster, ()
    return _end(cluster, Outcome.CANCELLED, 1, event.at, Cause("a restart was asked for (orch restart)", event.at), again=True)


def _end(
    cluster: Cluster, outcome: Outcome, code: int, at: float, cause: Cause | None = None, *, again: bool = False
) -> tuple[Cluster, tuple[Action, ...]]:
    """Decide the end and stop what still runs. An end that has been decided stays. `again`: another attempt may follow."""
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    if cluster.phase is Phase.STOPPING:
        if restarts.is_asked(cluster) and not again:  # to be started anew was no end; this is one
            cluster = replace(cluster, ending=ending)
        # What breaks a host while an attempt is being stopped would break the next one too.
        return _finish_if_empty(replace(cluster, again=cluster.again and again), at)
    if cluster.phase is Phase.PREPARING:
        cluster = _withdraw_members(cluster, at)
    cluster = replace(cluster, phase=Phase.STOPPING, stopping_at=at, ending=ending, again=again, alone=())
    running = running_tasks(cluster)
    if running:
        return cluster, (Stop(running, cluster.policy.grace_s),)
    return _finish_if_empty(cluster, at)


def running_tasks(cluster: Cluster) -> tuple[str, ...]:
    """The names of the tasks that have not ended."""
    return tuple(task.name for task in cluster.tasks.values() if not task.has_ended)


def _finish_if_empty(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    if cluster.phase is not Phase.STOPPING or cluster.ending is None or cluster.left:
        return cluster, ()
    ending = root_cause.settle(cluster, cluster.ending)
    cluster = replace(cluster, ending=ending)
    past = (*cluster.past, restarts.of_cluster(cluster, at))
    pause = restarts.pause(cluster, past)
    if pause is not None:
        return replace(cluster, phase=Phase.RESTARTING, resume_at=at + pause, past=past), ()
    gave_up = restarts.explain_end(cluster.policy.restart, restarts.relevant(past)) if cluster.again else ""
    verdict = replace(ending, ended_at=max(at, cluster.started_at), past=cluster.past, gave_up=gave_up, remains=cluster.remains)
    read = {task.name: task.input for task in cluster.tasks.values() if task.trains and task.input is not None}
    verdict = replace(verdict, input=read, remarks=input_counts.judge(read))
    if verdict.outcome is Outcome.SUCCEEDED and cluster.policy.opens_ports:
        verdict = replace(verdict, warning=readiness.describe_unformed(cluster))
    return replace(cluster, phase=Phase.DONE, verdict=verdict), (Finish(verdict),)


# --- starting again ----------------------------------------------------------------------------


def _begin_attempt(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    """Start the whole cluster anew."""
    number = cluster.attempt + 1
    furthest = cluster.reached if cluster.furthest is None else max(cluster.furthest, cluster.reached or cluster.furthest)
    cluster = replace(
        cluster,
        tasks={name: task if _is_prepared(task) else TaskStatus(name, task.host, number) for name, task in cluster.tasks.items()},
        attempt=number,
        formed_at=None,
        stopping_at=None,
        ending=None,
        again=False,
        resume_at=None,
        alone=(),
        reached=None,
        furthest=furthest,
        saved_before=cluster.saved_at,
    )
    return _start(task_counts.recount(cluster), at)


def _is_prepared(task: TaskStatus) -> bool:
    """What has prepared its host is not run again."""
    return task.prepares and task.state is TaskState.SUCCEEDED


def _begin_alone(cluster: Cluster, name: str) -> tuple[Cluster, StartAttempt]:
    """Start one task anew, on the port that is held for it."""
    number = cluster.attempt + 1
    cluster = replace(cluster, attempt=number, alone=tuple(other for other in cluster.alone if other != name))
    fresh = TaskStatus(name, cluster.tasks[name].host, number)
    tasks = {**cluster.tasks, name: fresh}
    return task_counts.recount(replace(cluster, tasks=tasks)), StartAttempt(number, (name,))


# --- deadlines ---------------------------------------------------------------------------------


def _on_tick(cluster: Cluster, at: float) -> tuple[Cluster, tuple[Action, ...]]:
    due = [deadline for deadline in deadlines.of(cluster) if deadline.at <= at]
    kinds = {deadline.kind for deadline in due}
    policy = cluster.policy
    if "run" in kinds and cluster.phase is Phase.STOPPING:
        return replace(cluster, is_due=True), (Hurry(),)
    if "run" in kinds:
        return _run_out(cluster, at, Cause(f"the run was not over after {policy.run_s:g} s (--timeout)", at), again=False)
    if "resume" in kinds:
        return _begin_attempt(cluster, at)
    if "prepare" in kinds:
        late = readiness.unprepared(cluster)
        has, host = ("has" if len(late) == 1 else "have"), cluster.tasks[late[0]].host
        what = f"{readiness.group_tasks(late)} {has} not ended {policy.prepare_s:g} s after the start (--prepare-timeout)"
        return _run_out(cluster, at, Cause(what, at, host=host))
    if "start" in kinds:
        awaited = readiness.awaited(cluster)
        said = readiness.describe_awaited(cluster, awaited)
        formed = "the restarted tasks had not come up" if cluster.formed_at is not None else "the cluster had not formed"
        what = f"{formed} {policy.start_s:g} s after its start (--start-timeout); {said}"
        return _run_out(cluster, at, Cause(what, at, host=awaited[0].host if awaited else ""))
    if "hang" in kinds:
        return _run_out(cluster, at, Cause(f"no task has written or reported anything for {policy.hang_s:g} s (--hang-timeout)", at))
    actions = []
    for deadline in due:
        cluster, action = _begin_alone(cluster, deadline.task)
        actions.append(action)
    return cluster, tuple(actions)


def _run_out(cluster: Cluster, at: float, cause: Cause, *, again: bool = True) -> tuple[Cluster, tuple[Action, ...]]:
    running = running_tasks(cluster)
    cluster, actions = _end(cluster, Outcome.TIMED_OUT, DEADLINE, at, cause, again=again)
    actions = (CollectStacks(running), *actions) if running else actions
    return (cluster, actions) if restarts.comes_again(cluster, at) else (replace(cluster, is_due=True), (Hurry(), *actions))
