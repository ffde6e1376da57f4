"""The policy of a run: a pure function `step` from (cluster, event) to (cluster, actions).

The events contain the time; this module reads no clock. `orch ps` folds the recorded events of a run with the same `step`.
The end of a task comes as `TaskExited`, which `_on_exit` handles: the task restarts alone, or the cluster ends, or nothing changes. When
nothing of the task is left, `TaskSwept` comes, which `_on_swept` handles.

`endings.end` decides the ending, and the phase becomes STOPPING. When the last task is swept, `endings.finish_if_empty` either plans
another attempt (see `restarts`), or makes the ending the verdict. By then every failure is known, and `root_cause` finds the first. Before
some ends a training saves itself: see `save_order`.
"""

from __future__ import annotations

from dataclasses import replace

from worker.protocol.task_files import APART, INPUT, PROGRESS, SCALE, SERVES

from ...errors import BROKEN, DEADLINE
from ..cause import remedies, root_cause
from ..planning import input_counts
from ..planning.plan import Plan
from ..settings import ClusterSpec
from ..state import events, progress
from ..state.cluster import UNLIKE, Cause, Cluster, Outcome, Phase, Policy, TaskState, TaskStatus
from ..state.events import Action, Event
from ..state.task_table import update
from ..strategies import named
from ..task_names import group_tasks
from . import deadlines, not_finite, readiness, restarts, save_order, save_reasons, save_results
from .endings import Step, end, finish_if_empty, run_out


def policy_of(spec: ClusterSpec) -> Policy:
    # A command can be any program. A user who sets start_s for a command says that the command opens its port.
    opens_ports = named(spec.strategy).opens_ports and (spec.program.kind != "command" or spec.timeouts.start_s is not None)
    is_command = spec.program.kind == "command"
    is_lent, requeues = bool(spec.backend.INSIDE), spec.backend.requeues
    workers = spec.counts["worker"] if spec.least_workers else 0
    restart = replace(spec.restart, lost_host="retry") if workers else spec.restart
    everywhere = spec.backend.IS_EVERYWHERE
    return Policy(spec.strategy, spec.timeouts, opens_ports, restart, spec.fail_on_nan, is_command, is_lent, requeues, everywhere, workers)


def begin(plan: Plan, attempt: int, at: float) -> events.Planned:
    with_port = [task for task in plan.tasks if task.order.port is not None]
    places = {str(task.id): f"{task.host}:{task.order.port}" for task in with_port} if len(plan.hosts) > 1 else {}
    addresses = {facts.address: facts.name for facts in plan.hosts} if places else {}
    return events.Planned(attempt, {str(task.id): task.host for task in plan.tasks}, at, places, addresses)


def step(cluster: Cluster, event: Event) -> Step:
    """The cluster after `event`, and the actions to perform. Events of another attempt, and events after the end, change nothing."""
    if not isinstance(event, events.RunResumed) and (cluster.is_over or _is_stale(cluster, event)):
        return cluster, ()
    match event:
        case events.RunBegun():
            return _on_begun(cluster, event)
        case events.RunResumed():
            return _on_resumed(cluster, event)
        case events.Allocated():
            return replace(cluster, phase=Phase.CONNECTING, waiting="", until=event.until, spare_s=event.spare_s), ()
        case events.HostsAwaited():
            return replace(cluster, waiting=event.reason), ()
        case events.HostReady():
            return _on_host_ready(cluster, event), ()
        case events.Planned():
            return _on_planned(cluster, event)
        case events.NotPlanned():
            return _on_not_planned(cluster, event)
        case events.TaskStarted() | events.TaskUp():
            return _on_started(cluster, event), ()
        case events.TaskWaiting():
            return update(cluster, event.task, waiting=event.reason), ()
        case events.TaskReported():
            return _end_if_not_finite(_on_report(cluster, event), event)
        case events.TaskNotStarted():
            return _on_not_started(cluster, event)
        case events.TaskExited():
            return _on_exit(cluster, event)
        case events.TaskSwept():
            return _on_swept(cluster, event)
        case events.HostLost():
            return _on_host_lost(cluster, event)
        case events.HostBroken():
            return _on_host_broken(cluster, event)
        case events.RunNoted():
            return _on_noted(cluster, event)
        case events.TaskSaves():
            return save_reasons.on_saves(cluster, event)
        case events.HostsBack():
            return save_reasons.on_hosts_back(cluster, event)
        case events.StopRequested():
            return _on_stop_requested(cluster, event)
        case events.RestartRequested():
            return _on_restart_requested(cluster, event)
        case events.CheckpointSeen():
            return replace(cluster, saved_at=max(cluster.saved_at, event.at)), ()
        case events.Tick():
            return _on_tick(cluster.active(event.written_at), event.at, event.absent)
    return cluster, ()  # only people and the timeline use the other events


def _on_begun(cluster: Cluster, event: events.RunBegun) -> Step:
    cluster = replace(cluster, policy=event.policy, run=event.run, began_at=event.at, started_at=event.at)
    return cluster, (events.MakePlan(cluster.attempt),)


def _on_noted(cluster: Cluster, event: events.RunNoted) -> Step:
    if event.ends:
        return save_reasons.on_host_taken(cluster, event)
    return replace(cluster, odd_link=event.text) if UNLIKE in event.text and not event.host else cluster, ()


def _on_not_planned(cluster: Cluster, event: events.NotPlanned) -> Step:
    outcome = Outcome.BROKEN if event.code == BROKEN else Outcome.FAILED
    # A host that was lost may still be starting.
    again = event.code == BROKEN and cluster.attempt > 1 and cluster.policy.survives_hosts
    return end(cluster, outcome, event.code, event.at, Cause(event.reason, event.at), again=again)


def _on_started(cluster: Cluster, event: events.TaskStarted | events.TaskUp) -> Cluster:
    if isinstance(event, events.TaskStarted):
        cluster = update(cluster, event.task, state=TaskState.STARTED, pid=event.pid, started_at=event.at, waiting="")
    else:
        cluster = update(cluster, event.task, state=TaskState.UP, up_at=event.at, waiting="")
    return _form(cluster.active(event.at), event.at)


def _on_host_broken(cluster: Cluster, event: events.HostBroken) -> Step:
    what = event.reason if cluster.tasks or not event.host else f"host {event.host}: {event.reason}"
    return end(cluster, Outcome.BROKEN, BROKEN, event.at, Cause(what, event.at, host=event.host))


def _is_stale(cluster: Cluster, event: Event) -> bool:
    if isinstance(event, events.Allocated | events.HostsAwaited | events.Planned | events.NotPlanned):
        return not cluster.awaits_plan
    if not isinstance(event, events.TaskEvent):
        return False
    task = cluster.tasks.get(event.task)
    if task is None or event.attempt != task.attempt:
        return True
    return task.has_ended and not isinstance(event, (events.TaskSwept, events.TaskReported))


def _on_report(cluster: Cluster, event: events.TaskReported) -> Cluster:
    values = {name: value for name, value in event.values.items() if name != SCALE}
    found = input_counts.read(values.pop(INPUT)) if INPUT in values else cluster.tasks[event.task].input
    serves = values.pop(SERVES, cluster.tasks[event.task].serves) is True
    apart = values.pop(APART, cluster.tasks[event.task].trains_apart) is True
    far = progress.read(values.pop(PROGRESS)) if PROGRESS in values else cluster.tasks[event.task].progress
    odd = not_finite.seen(cluster.tasks[event.task].not_finite, values)
    cluster = update(cluster, event.task, report=values, reported_at=event.at, input=found, not_finite=odd)
    cluster = update(cluster, event.task, serves=serves, trains_apart=apart, progress=far)
    step = values.get("step")
    # A bool is a number in Python, and NaN compares with nothing.
    if isinstance(step, (int, float)) and not isinstance(step, bool) and step == step:
        cluster = replace(cluster, reached=step if cluster.reached is None else max(cluster.reached, step))
    return cluster.active(event.at) if cluster.tasks[event.task].trains else cluster


def _end_if_not_finite(cluster: Cluster, event: events.TaskReported) -> Step:
    """End the run if the user wants no training with values that are not finite. No restart follows: the next attempt would be the same."""
    cause = not_finite.cause(cluster, event.at)
    return end(cluster, Outcome.FAILED, 1, event.at, cause) if cause and cluster.phase is not Phase.STOPPING else (cluster, ())


def _form(cluster: Cluster, at: float) -> Cluster:
    if cluster.phase is not Phase.STARTING or not readiness.is_formed(cluster):
        return cluster
    return replace(cluster, phase=Phase.RUNNING, formed_at=at)


# --- starting ----------------------------------------------------------------------------------


def _on_host_ready(cluster: Cluster, event: events.HostReady) -> Cluster:
    addresses = {**cluster.addresses, **{one.address: event.host for one in event.addresses}}
    return replace(cluster, notes=tuple(dict.fromkeys((*cluster.notes, *event.notes))), addresses=addresses)


def _on_planned(cluster: Cluster, event: events.Planned) -> Step:
    """The attempt has its plan: the tasks are those of the plan, whatever the tasks of the attempt before were."""
    tasks = {name: TaskStatus(name, host, event.attempt) for name, host in event.tasks.items()}
    started_at = cluster.started_at if cluster.past else event.at
    addresses = {**cluster.addresses, **event.addresses}
    cluster = replace(cluster, tasks=tasks, started_at=started_at, waiting="", places=event.places, addresses=addresses, needs_hosts=False)
    return _start(cluster, event.at)


def _start(cluster: Cluster, at: float) -> Step:
    """Start the tasks that prepare a host and have not succeeded yet; if there are none, start the members of the cluster."""
    unprepared = tuple(readiness.unprepared(cluster))
    names = unprepared or tuple(task.name for task in cluster.members)
    phase = Phase.PREPARING if unprepared else Phase.STARTING
    return replace(cluster, phase=phase, attempt_at=at, active_at=at, odd_link=""), (events.StartAttempt(cluster.attempt, names),)


# --- ending ------------------------------------------------------------------------------------


def _on_not_started(cluster: Cluster, event: events.TaskNotStarted) -> Step:
    if cluster.phase is Phase.STOPPING:  # the agent has cancelled its start
        return finish_if_empty(update(cluster, event.task, state=TaskState.STOPPED, ended_at=event.at, swept=True), event.at)
    return _break_down(cluster, event.task, TaskState.FAILED, f"could not be started: {event.reason}", event.at)


def _break_down(cluster: Cluster, name: str, state: TaskState, what: str, at: float) -> Step:
    """End the run because of a task that orch could not start, or could not end."""
    cluster = update(cluster, name, state=state, ended_at=at, swept=True)
    task = cluster.tasks[name]
    return end(cluster, Outcome.BROKEN, BROKEN, at, Cause(what, at, name, task.host, attempt=task.attempt))


def _on_exit(cluster: Cluster, event: events.TaskExited) -> Step:
    state = TaskState.STOPPED if event.stopped else TaskState.FAILED if event.code else TaskState.SUCCEEDED
    changes = {"state": state, "ended_at": event.at, "code": event.code, "killed": event.killed, "failure": event.failure}
    cluster = update(cluster, event.task, **changes, evidence=event.evidence)
    if cluster.phase is Phase.STOPPING:
        return cluster, ()
    task = cluster.tasks[event.task]
    if cluster.saving is not None:
        return save_results.on_exit(cluster, event)
    # The agent stopped the task without an order: the agent lost the controller, or got a signal. The end of that agent is the cause.
    cause = None if event.stopped else root_cause.of_exit(cluster, task, event.code)
    if cause is not None and cluster.policy.role(task).restarts_alone:
        past = (*cluster.past, restarts.past_attempt(cluster, cause.at, cause, task))
        pause = restarts.pause_after(cluster.policy.restart, restarts.relevant(past, task.name), f"{cluster.run}/{task.name}")
        if pause is not None:  # a cluster that has not formed waits for this task
            return update(replace(cluster, past=past), task.name, restart_at=cause.at + pause), ()
    cluster = _form(cluster, event.at)
    if cause is not None and not task.is_aside:
        stalled = root_cause.suspects(cluster, task.name)
        cluster, actions = end(cluster, Outcome.FAILED, root_cause.given_code(cause), event.at, cause, again=True)
        return cluster, ((events.CollectStacks(stalled), *actions) if stalled else actions)
    return end(cluster, Outcome.SUCCEEDED, 0, event.at) if readiness.has_succeeded(cluster) else (cluster, ())


def _on_swept(cluster: Cluster, event: events.TaskSwept) -> Step:
    task = cluster.tasks[event.task]
    if event.left:
        cluster = replace(cluster, remains=(*cluster.remains, f"{task.name} on {task.host}: {event.left}"))
    if task.has_ended:
        cluster = update(cluster, task.name, swept=True)
        if cluster.phase is Phase.PREPARING and not readiness.unprepared(cluster):
            return _start(cluster, event.at)
        return finish_if_empty(cluster, event.at)
    # SIGKILL has not ended this task. No task may start next to it, on the same port and devices.
    return _break_down(cluster, task.name, TaskState.LOST, f"has outlived SIGKILL: {event.left}", event.at)


def _on_host_lost(cluster: Cluster, event: events.HostLost) -> Step:
    lost = [task for task in cluster.tasks.values() if task.host == event.host and not (task.has_ended and task.swept)]
    for task in lost:
        state = task.state if task.has_ended else TaskState.LOST
        cluster = update(cluster, task.name, state=state, ended_at=task.ended_at or event.at, swept=True)
    what = f"lost host {event.host}: {event.reason}" if cluster.tasks else f"host {event.host} cannot be used: {event.reason}"
    cause = Cause(what, event.at, host=event.host, remedy=event.remedy)
    ending = cluster.ending
    if ending and ending.outcome is Outcome.FAILED and ending.cause and event.overdue_at and event.overdue_at < ending.cause.at:
        # The tasks on other hosts noticed the loss before the controller, and failed because of it.
        ending = replace(ending, outcome=Outcome.BROKEN, exit_code=BROKEN, cause=replace(cause, at=event.overdue_at))
        cluster = replace(cluster, ending=ending)
    if cluster.saving is not None and not cluster.saving.again:
        return save_results.end_now(cluster, event.at)
    again = bool(cluster.tasks) and cluster.policy.survives_hosts
    cluster = replace(cluster, needs_hosts=again)
    if again and cluster.phase is Phase.RESTARTING:
        return cluster, ()
    return end(cluster, Outcome.BROKEN, BROKEN, event.at, cause, again=again)


def _on_stop_requested(cluster: Cluster, event: events.StopRequested) -> Step:
    # The engine that has taken a host ends the controller too: that is no second request to end.
    if (ending := save_results.as_requested(cluster.ending, event)) is not None:
        return replace(cluster, ending=ending), ()
    if event.saves and cluster.saving is not None and (ending := save_results.as_requested(cluster.saving.ending, event)) is not None:
        return replace(cluster, needs_hosts=False, saving=replace(cluster.saving, ending=ending, again=False)), ()
    if cluster.phase is Phase.STOPPING and not restarts.will_restart(cluster):
        running = tuple(task.name for task in cluster.tasks.values() if not task.swept)
        return replace(cluster, stop_repeated=True, is_due=True), (events.Stop(running, 0.0),)
    cause = Cause(event.reason, event.at)
    if event.saves:
        return save_reasons.before_the_end(cluster, Outcome.CANCELLED, event.code, event.at, cause, by_signal=event.by_signal)
    return end(cluster, Outcome.CANCELLED, event.code, event.at, cause)


def _on_restart_requested(cluster: Cluster, event: events.RestartRequested) -> Step:
    if cluster.phase is Phase.RESTARTING:
        return _begin_attempt(cluster, event.at)
    if cluster.awaits_plan or cluster.phase is Phase.STOPPING:
        return cluster, ()
    return end(cluster, Outcome.CANCELLED, 1, event.at, Cause("a restart was asked for (orch restart)", event.at), again=True)


# --- starting again ----------------------------------------------------------------------------


def _begin_attempt(cluster: Cluster, at: float) -> Step:
    """Start the next attempt of the whole cluster, with the same plan if no host was lost."""
    number = cluster.attempt + 1
    cluster = replace(cluster, attempt=number, attempt_at=at, formed_at=None, ending=None, again=False, is_due=False, resume_at=None)
    is_broken = bool(cluster.policy.workers and restarts.broken_hosts(cluster.past).keys() & {task.host for task in cluster.members})
    if cluster.needs_hosts or cluster.is_shrunk or is_broken:  # what has come back is taken in
        return replace(cluster, needs_hosts=True, phase=Phase.ALLOCATING), (events.MakePlan(number),)
    prepared = {name: task for name, task in cluster.tasks.items() if task.prepares and task.state is TaskState.SUCCEEDED}
    tasks = {name: TaskStatus(name, task.host, number) for name, task in cluster.tasks.items()} | prepared
    return _start(replace(cluster, tasks=tasks), at)


def _on_resumed(cluster: Cluster, event: events.RunResumed) -> Step:
    """Begin the next attempt, whatever became of the former one. As after a preemption, this restart does not count, nor does a limit."""
    lost = {name: replace(task, state=TaskState.LOST, ended_at=event.at) for name, task in cluster.tasks.items() if not task.has_ended}
    tasks = {name: replace(lost.get(name, task), swept=True, restart_at=None) for name, task in cluster.tasks.items()}
    has_begun = bool(tasks) and not cluster.awaits_plan
    cluster = replace(cluster, tasks=tasks, verdict=None, until=None, stop_repeated=False, needs_hosts=True)
    if not has_begun:
        return replace(cluster, phase=Phase.ALLOCATING, waiting="", ending=None), (events.MakePlan(cluster.attempt),)
    if cluster.phase is not Phase.RESTARTING:
        cluster = replace(cluster, saved_at=max(cluster.saved_at, event.saved_at))
        cause = cluster.ending and cluster.ending.cause
        ended = restarts.past_attempt(cluster, event.at, cause or Cause("the job of its controller was started again", event.at))
        cluster = replace(cluster, past=(*cluster.past, replace(ended, free=True)))
    return _begin_attempt(cluster, event.at)


def _begin_alone(cluster: Cluster, at: float) -> Step:
    """Restart the tasks whose pause is over, each on the port that its agent holds."""
    actions: tuple[Action, ...] = ()
    for task in cluster.tasks.values():
        if task.restart_at is not None and task.restart_at <= at and task.swept:
            number = cluster.attempt + 1
            tasks = {**cluster.tasks, task.name: TaskStatus(task.name, task.host, number)}
            cluster = replace(cluster, attempt=number, tasks=tasks)
            actions += (events.StartAttempt(number, (task.name,)),)
    return cluster, actions


# --- deadlines ---------------------------------------------------------------------------------


def _on_tick(cluster: Cluster, at: float, absent: str) -> Step:
    due = [kind for kind, deadline in deadlines.deadlines_of(cluster).items() if deadline <= at]
    limits = cluster.policy.timeouts
    match due[0] if due else None:  # one deadline that ends the attempt is enough
        case "run" if cluster.phase is Phase.STOPPING:
            return replace(cluster, is_due=True), ()
        case "run" if cluster.saving is None or cluster.saving.again:
            waits = "" if cluster.tasks else f"; {cluster.waiting or 'no task had been started'}"
            what = f"the run took longer than {limits.run_s:g} s (--timeout){waits}"
            return run_out(cluster, at, what, remedies.of_deadline("run", limits.run_s), again=False)
        case "allocation" if cluster.phase is Phase.STOPPING:
            return replace(cluster, is_due=True), ()
        case "run":
            return save_results.end_now(cluster, at)
        case "allocation":
            code = restarts.PREEMPTED if cluster.policy.requeues else DEADLINE
            cause = Cause("the time of its allocation is nearly over", at)
            if save_order.is_possible(cluster) or cluster.saving is not None:
                return save_reasons.before_the_end(cluster, Outcome.TIMED_OUT, code, at, cause, limit_s=cluster.spare_s)
            return run_out(cluster, at, cause.what, again=False, code=code)
        case "save":
            what = f"the time of the run is over in {limits.save_before_s:g} s (timeouts.save_before_s)"
            code = restarts.PREEMPTED if cluster.policy.requeues else DEADLINE
            return save_reasons.before_the_end(cluster, Outcome.TIMED_OUT, code, at, Cause(what, at), limit_s=limits.save_before_s)
        case "unsaved":
            return save_results.end_now(cluster, at)
        case "name":
            return save_order.name(cluster)
        case "resume":
            return _begin_attempt(cluster, at)
        case "prepare":
            late = readiness.unprepared(cluster)
            has = "has" if len(late) == 1 else "have"
            what = f"{group_tasks(late)} {has} not ended {limits.prepare_s:g} s after the start (timeouts.prepare_s)"
            return run_out(cluster, at, what, remedies.of_deadline("prepare", limits.prepare_s), host=cluster.tasks[late[0]].host)
        case "start":
            awaited = readiness.awaited(cluster)
            formed = "the restarted tasks had not come up" if cluster.formed_at is not None else "the cluster had not formed"
            what = f"{formed} {limits.start_s:g} s after its start (timeouts.start_s); {readiness.describe_awaited(cluster, awaited)}"
            host = awaited[0].host if awaited else ""
            return run_out(cluster, at, what, remedies.of_deadline("start", limits.start_s), host=host)
        case "hang":
            what = f"no task has written or reported anything for {limits.hang_s:g} s (--hang-timeout)"
            kind = "hang again" if cluster.policy.restart.max else "hang"
            return run_out(cluster, at, f"{what}; {absent}" if absent else what, remedies.of_deadline(kind, limits.hang_s))
        case "alone":
            return _begin_alone(cluster, at)
    return cluster, ()
