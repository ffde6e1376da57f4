"""The policy of a run: a pure function `step` from (cluster, event) to (cluster, actions).

The events contain the time; this module reads no clock. `orch ps` folds the recorded events of a run with the same `step`.
The end of a task comes as `TaskExited`, which `_on_exit` handles: the task restarts alone, or the cluster ends, or nothing changes. When
nothing of the task is left, `TaskSwept` comes, which `_on_swept` handles.

`_end` decides the ending, and the phase becomes STOPPING. When the last task is swept, `_finish_if_empty` either plans another attempt (see
`restarts`), or makes the ending the verdict. By then every failure is known, and `root_cause` finds the first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worker.protocol.task_files import INPUT, SERVES

from ...errors import BROKEN, DEADLINE, TERMINATED
from ..cause import root_cause
from ..input import input_counts
from ..input.input_counts import InputCounts
from ..planning.plan import Plan
from ..spec import ClusterSpec
from ..strategies import named
from ..task_names import group_tasks
from . import deadlines, events, last_saves, not_finite, readiness, restarts
from .cluster import Cause, Cluster, Outcome, Phase, Policy, TaskState, TaskStatus, Verdict
from .events import Action, Event
from .task_table import table

Step = tuple[Cluster, tuple[Action, ...]]
"""The next cluster, and the actions that the supervisor performs."""


def policy_of(spec: ClusterSpec) -> Policy:
    """The policy of a run."""
    # A command can be any program. A user who sets start_s for a command says that the command opens its port.
    opens_ports = named(spec.strategy).opens_ports and (spec.program.kind != "command" or spec.timeouts.start_s is not None)
    is_command = spec.program.kind == "command"
    is_lent, requeues = bool(spec.backend.INSIDE), spec.backend.requeues
    workers = spec.counts["worker"] if spec.least_workers else 0
    restart = replace(spec.restart, lost_host="retry") if workers else spec.restart
    return Policy(spec.strategy, spec.timeouts, opens_ports, restart, spec.fail_on_nan, is_command, is_lent, requeues, workers)


def begin(plan: Plan, attempt: int, at: float) -> events.Planned:
    """The event that begins an attempt with this plan."""
    with_port = [task for task in plan.tasks if task.order.port is not None]
    places = {str(task.id): f"{task.host}:{task.order.port}" for task in with_port} if len(plan.hosts) > 1 else {}
    return events.Planned(attempt, {str(task.id): task.host for task in plan.tasks}, at, places)


def step(cluster: Cluster, event: Event) -> Step:
    """The cluster after `event`, and the actions to perform. Events of another attempt, and events after the end, change nothing."""
    if isinstance(event, events.RunResumed):
        return _on_resumed(cluster, event)
    if cluster.is_over or _is_stale(cluster, event):
        return cluster, ()
    match event:
        case events.RunBegun():
            cluster = replace(cluster, policy=event.policy, run=event.run, began_at=event.at, started_at=event.at)
            return cluster, (events.MakePlan(cluster.attempt),)
        case events.Allocated():
            return replace(cluster, phase=Phase.CONNECTING, waiting="", until=event.until), ()
        case events.HostsAwaited():
            return replace(cluster, waiting=event.reason), ()
        case events.HostReady():
            return replace(cluster, notes=tuple(dict.fromkeys((*cluster.notes, *event.notes)))), ()
        case events.Planned():
            return _on_planned(cluster, event)
        case events.NotPlanned():
            outcome = Outcome.BROKEN if event.code == BROKEN else Outcome.FAILED
            again = event.code == BROKEN and cluster.attempt > 1 and _survives_hosts(cluster)  # a host that was lost may still be starting
            return _end(cluster, outcome, event.code, event.at, Cause(event.reason, event.at), again=again)
        case events.TaskStarted():
            cluster = _update(cluster, event.task, state=TaskState.STARTED, pid=event.pid, started_at=event.at, waiting="")
            return _form(_mark_active(cluster, event.at), event.at), ()
        case events.TaskUp():
            cluster = _update(cluster, event.task, state=TaskState.UP, up_at=event.at, waiting="")
            return _form(_mark_active(cluster, event.at), event.at), ()
        case events.TaskWaiting():
            return _update(cluster, event.task, waiting=event.reason), ()
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
            what = event.reason if cluster.tasks or not event.host else f"host {event.host}: {event.reason}"
            return _end(cluster, Outcome.BROKEN, BROKEN, event.at, Cause(what, event.at, host=event.host))
        case events.RunNoted() if event.ends:
            return _on_host_taken(cluster, event)
        case events.TaskSaves():
            return _on_saves(cluster, event)
        case events.HostsBack():
            return last_saves.take_in(cluster, event)
        case events.StopRequested():
            return _on_stop_requested(cluster, event)
        case events.RestartRequested():
            return _on_restart_requested(cluster, event)
        case events.CheckpointSeen():
            return replace(cluster, saved_at=max(cluster.saved_at, event.at)), ()
        case events.Tick():
            return _on_tick(_mark_active(cluster, event.written_at), event.at, event.absent)
        case _:
            return cluster, ()  # only people and the timeline use the other events


def _is_stale(cluster: Cluster, event: Event) -> bool:
    if isinstance(event, events.Allocated | events.HostsAwaited | events.Planned | events.NotPlanned):
        return not cluster.awaits_plan
    if not isinstance(event, events.TaskEvent):
        return False
    task = cluster.tasks.get(event.task)
    if task is None or event.attempt != task.attempt:
        return True
    return task.has_ended and not isinstance(event, (events.TaskSwept, events.TaskReported))


def _update(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The cluster with changes to one task."""
    return replace(cluster, tasks=table(cluster.tasks).changed(name, lambda task: replace(task, **changes)))


def _on_report(cluster: Cluster, event: events.TaskReported) -> Cluster:
    values = dict(event.values)
    found = input_counts.read(values.pop(INPUT)) if INPUT in values else cluster.tasks[event.task].input
    serves = values.pop(SERVES, cluster.tasks[event.task].serves) is True
    odd = not_finite.seen(cluster.tasks[event.task].not_finite, values)
    cluster = _update(cluster, event.task, report=values, reported_at=event.at, input=found, serves=serves, not_finite=odd)
    step = values.get("step")
    # A bool is a number in Python, and NaN compares with nothing.
    if isinstance(step, (int, float)) and not isinstance(step, bool) and step == step:
        cluster = replace(cluster, reached=step if cluster.reached is None else max(cluster.reached, step))
    return _mark_active(cluster, event.at) if cluster.tasks[event.task].trains else cluster


def _end_if_not_finite(cluster: Cluster, event: events.TaskReported) -> Step:
    """End the run if the user wants no training with values that are not finite. No restart follows: the next attempt would be the same."""
    cause = not_finite.cause(cluster, event.at)
    return _end(cluster, Outcome.FAILED, 1, event.at, cause) if cause and cluster.phase is not Phase.STOPPING else (cluster, ())


def _mark_active(cluster: Cluster, at: float) -> Cluster:
    """A task is active: the limit `hang_s` counts from here."""
    return replace(cluster, active_at=max(cluster.active_at, at))


def _form(cluster: Cluster, at: float) -> Cluster:
    if cluster.phase is not Phase.STARTING or not readiness.is_formed(cluster):
        return cluster
    return replace(cluster, phase=Phase.RUNNING, formed_at=at)


# --- starting ----------------------------------------------------------------------------------


def _on_planned(cluster: Cluster, event: events.Planned) -> Step:
    """The attempt has its plan: the tasks are those of the plan, whatever the tasks of the attempt before were."""
    tasks = {name: TaskStatus(name, host, event.attempt) for name, host in event.tasks.items()}
    started_at = cluster.started_at if cluster.past else event.at
    cluster = replace(cluster, tasks=tasks, started_at=started_at, waiting="", places=event.places, needs_hosts=False)
    return _start(cluster, event.at)


def _start(cluster: Cluster, at: float) -> Step:
    """Start the tasks that prepare a host and have not succeeded yet; if there are none, start the members of the cluster."""
    unprepared = tuple(readiness.unprepared(cluster))
    names = unprepared or tuple(task.name for task in cluster.members)
    phase = Phase.PREPARING if unprepared else Phase.STARTING
    return replace(cluster, phase=phase, attempt_at=at, active_at=at), (events.StartAttempt(cluster.attempt, names),)


# --- ending ------------------------------------------------------------------------------------


def _on_not_started(cluster: Cluster, event: events.TaskNotStarted) -> Step:
    if cluster.phase is Phase.STOPPING:  # the agent has cancelled its start
        return _finish_if_empty(_update(cluster, event.task, state=TaskState.STOPPED, ended_at=event.at, swept=True), event.at)
    return _break_down(cluster, event.task, TaskState.FAILED, f"could not be started: {event.reason}", event.at)


def _break_down(cluster: Cluster, name: str, state: TaskState, what: str, at: float) -> Step:
    """End the run because of a task that orch could not start, or could not end."""
    cluster = _update(cluster, name, state=state, ended_at=at, swept=True)
    task = cluster.tasks[name]
    return _end(cluster, Outcome.BROKEN, BROKEN, at, Cause(what, at, name, task.host, attempt=task.attempt))


def _on_exit(cluster: Cluster, event: events.TaskExited) -> Step:
    state = TaskState.STOPPED if event.stopped else TaskState.FAILED if event.code else TaskState.SUCCEEDED
    changes = {"state": state, "ended_at": event.at, "code": event.code, "killed": event.killed, "failure": event.failure}
    cluster = _update(cluster, event.task, **changes, evidence=event.evidence)
    if cluster.phase is Phase.STOPPING:
        return cluster, ()
    task = cluster.tasks[event.task]
    if cluster.saving is not None:
        return _on_exit_while_saving(cluster, event)
    # The agent stopped the task without an order: the agent lost the controller, or got a signal. The end of that agent is the cause.
    cause = None if event.stopped else root_cause.of_exit(cluster, task, event.code)
    if cause is not None and cluster.policy.role(task).restarts_alone:
        past = (*cluster.past, restarts.past_attempt(cluster, cause.at, cause, task))
        pause = restarts.pause_after(cluster.policy.restart, restarts.relevant(past, task.name), f"{cluster.run}/{task.name}")
        if pause is not None:  # a cluster that has not formed waits for this task
            return _update(replace(cluster, past=past), task.name, restart_at=cause.at + pause), ()
    cluster = _form(cluster, event.at)
    if cause is not None and not task.is_aside:
        stalled = root_cause.suspects(cluster, task.name)
        cluster, actions = _end(cluster, Outcome.FAILED, root_cause.given_code(cause), event.at, cause, again=True)
        return cluster, ((events.CollectStacks(stalled), *actions) if stalled else actions)
    return _end(cluster, Outcome.SUCCEEDED, 0, event.at) if readiness.has_succeeded(cluster) else (cluster, ())


def _on_swept(cluster: Cluster, event: events.TaskSwept) -> Step:
    task = cluster.tasks[event.task]
    if event.left:
        cluster = replace(cluster, remains=(*cluster.remains, f"{task.name} on {task.host}: {event.left}"))
    if task.has_ended:
        cluster = _update(cluster, task.name, swept=True)
        if cluster.phase is Phase.PREPARING and not readiness.unprepared(cluster):
            return _start(cluster, event.at)
        return _finish_if_empty(cluster, event.at)
    # SIGKILL has not ended this task. No task may start beside it, on the same port and devices.
    return _break_down(cluster, task.name, TaskState.LOST, f"has outlived SIGKILL: {event.left}", event.at)


def _on_host_lost(cluster: Cluster, event: events.HostLost) -> Step:
    lost = [task for task in cluster.tasks.values() if task.host == event.host and not (task.has_ended and task.swept)]
    for task in lost:
        state = task.state if task.has_ended else TaskState.LOST
        cluster = _update(cluster, task.name, state=state, ended_at=task.ended_at or event.at, swept=True)
    what = f"lost host {event.host}: {event.reason}" if cluster.tasks else f"host {event.host} cannot be used: {event.reason}"
    cause = Cause(what, event.at, host=event.host)
    ending = cluster.ending
    if ending and ending.outcome is Outcome.FAILED and ending.cause and event.overdue_at and event.overdue_at < ending.cause.at:
        # The tasks on other hosts noticed the loss before the controller, and failed because of it.
        ending = replace(ending, outcome=Outcome.BROKEN, exit_code=BROKEN, cause=replace(cause, at=event.overdue_at))
        cluster = replace(cluster, ending=ending)
    if cluster.saving is not None and not cluster.saving.again:
        return _end_saving(cluster, event.at)
    again = bool(cluster.tasks) and _survives_hosts(cluster)
    cluster = replace(cluster, needs_hosts=again)
    if again and cluster.phase is Phase.RESTARTING:
        return cluster, ()
    return _end(cluster, Outcome.BROKEN, BROKEN, event.at, cause, again=again)


def _survives_hosts(cluster: Cluster) -> bool:
    """Whether another attempt may follow the loss of a host."""
    return cluster.policy.restart.lost_host == "retry"


def _on_host_taken(cluster: Cluster, event: events.RunNoted) -> Step:
    """An engine takes the hosts back: whoever loses one first, the run ends as if it had been asked to.

    A host that is not lent goes away: a training that can do so saves itself before the host is lost.
    """
    if cluster.phase is Phase.STOPPING and not restarts.will_restart(cluster):
        return cluster, ()
    if cluster.saving is not None and not cluster.saving.again:
        return cluster, ()
    cause = Cause(f"{event.line}: it is taken away", event.at, host=event.host)
    if cluster.policy.is_lent:
        return _save_and_end(cluster, Outcome.CANCELLED, TERMINATED, event.at, cause)
    if not last_saves.is_possible(cluster):
        return cluster, ()  # the loss of the host follows
    again = _survives_hosts(cluster)
    return _save_and_end(replace(cluster, needs_hosts=again), Outcome.CANCELLED, TERMINATED, event.at, cause, again=again)


def _on_stop_requested(cluster: Cluster, event: events.StopRequested) -> Step:
    # The engine that has taken a host ends the controller too: that is no second request to end.
    if (ending := last_saves.as_requested(cluster.ending, event)) is not None:
        return replace(cluster, ending=ending), ()
    if event.saves and cluster.saving is not None and (ending := last_saves.as_requested(cluster.saving.ending, event)) is not None:
        return replace(cluster, needs_hosts=False, saving=replace(cluster.saving, ending=ending, again=False)), ()
    if cluster.phase is Phase.STOPPING and not restarts.will_restart(cluster):
        running = tuple(task.name for task in cluster.tasks.values() if not task.swept)
        return replace(cluster, stop_repeated=True, is_due=True), (events.Stop(running, 0.0),)
    end = _save_and_end if event.saves else _end
    return end(cluster, Outcome.CANCELLED, event.code, event.at, Cause(event.reason, event.at))


def _on_restart_requested(cluster: Cluster, event: events.RestartRequested) -> Step:
    if cluster.phase is Phase.RESTARTING:
        return _begin_attempt(cluster, event.at)
    if cluster.awaits_plan or cluster.phase is Phase.STOPPING:
        return cluster, ()
    return _end(cluster, Outcome.CANCELLED, 1, event.at, Cause("a restart was asked for (orch restart)", event.at), again=True)


def _end(cluster: Cluster, outcome: Outcome, code: int, at: float, cause: Cause | None = None, *, again: bool = False) -> Step:
    """Decide the ending and stop the running tasks. `again`: another attempt may follow."""
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    if cluster.phase is Phase.STOPPING:
        if not again:  # no restart: a host that breaks now would also break the next attempt
            # The first ending stays, unless it is a restart that the user has requested, which is no failure.
            first = ending if restarts.is_requested_restart(cluster) else cluster.ending
            cluster = replace(cluster, ending=first, again=False)
        return _finish_if_empty(cluster, at)
    if cluster.phase is Phase.PREPARING:  # the members will not start
        withdrawn = {task.name: replace(task, state=TaskState.STOPPED, ended_at=at, swept=True) for task in cluster.members}
        cluster = replace(cluster, tasks={**cluster.tasks, **withdrawn})
    cluster = replace(cluster, phase=Phase.STOPPING, ending=ending, again=again, saving=None)
    running = running_tasks(cluster)
    if running:
        return cluster, (events.Stop(running, cluster.policy.timeouts.grace_s),)
    return _finish_if_empty(cluster, at)


def running_tasks(cluster: Cluster) -> tuple[str, ...]:
    """The names of the tasks that have not ended."""
    return tuple(task.name for task in cluster.tasks.values() if not task.has_ended)


def _finish_if_empty(cluster: Cluster, at: float) -> Step:
    if cluster.phase is not Phase.STOPPING or cluster.ending is None or not readiness.is_empty(cluster):
        return cluster, ()
    ending = root_cause.find_cause(cluster, cluster.ending)
    if ending.outcome is Outcome.SUCCEEDED and (cause := not_finite.cause(cluster, at)):  # the last report comes with the end of a task
        ending = replace(ending, outcome=Outcome.FAILED, exit_code=1, cause=cause)
    cluster = replace(cluster, ending=ending)
    past = (*cluster.past, restarts.past_attempt(cluster, at, ending.cause))
    pause = restarts.pause(cluster, past)
    if pause is not None:
        return replace(cluster, phase=Phase.RESTARTING, resume_at=at + pause, past=past), ()
    gave_up = restarts.explain_end(cluster.policy.restart, restarts.relevant(past)) if cluster.again else ""
    warning = readiness.describe_unformed(cluster) if ending.outcome is Outcome.SUCCEEDED and cluster.policy.opens_ports else ""
    verdict = replace(ending, ended_at=max(at, cluster.started_at), past=cluster.past, gave_up=gave_up, remains=cluster.remains)
    verdict = replace(verdict, warning=warning, input=_inputs(cluster), reports=cluster.reports, remarks=remarks(cluster))
    return replace(cluster, phase=Phase.DONE, verdict=verdict), ()


def _inputs(cluster: Cluster) -> dict[str, InputCounts]:
    return {task.name: task.input for task in cluster.tasks.values() if task.trains and task.input is not None}


def remarks(cluster: Cluster) -> tuple[str, ...]:
    """What is odd about the tasks, about their input and their last reports, one line each."""
    may_wait = cluster.ending is None or cluster.ending.outcome in (Outcome.CANCELLED, Outcome.TIMED_OUT)
    waits = readiness.describe_serving(cluster) if may_wait else ""
    final = all(task.state is TaskState.SUCCEEDED and task.swept for task in cluster.tasks.values() if task.trains)
    return (*filter(None, [waits]), *input_counts.judge(_inputs(cluster), final=final), *not_finite.judge(cluster))


# --- saves on order ------------------------------------------------------------------------------


def _save_and_end(
    cluster: Cluster, outcome: Outcome, code: int, at: float, cause: Cause, *, again: bool = False, limit_s: float | None = None
) -> Step:
    """Let the training save itself, if it can, and then end the attempt; see `last_saves`. `limit_s`: by default the grace of the user."""
    former, limit_s = cluster.saving, max(cluster.policy.timeouts.grace_s, limit_s or 0.0)
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    if former is not None and former.again and not again:
        return last_saves.replace_ending(cluster, former, ending, limit_s), ()
    if not last_saves.is_possible(cluster):
        return _end(cluster, outcome, code, at, cause, again=again)
    return last_saves.begin(cluster, ending, limit_s, again=again)


def _on_saves(cluster: Cluster, event: events.TaskSaves) -> Step:
    if event.state == "unable":
        return _update(cluster, event.task, saves=False), ()
    if event.state != "asks":
        cluster = _mark_active(_update(cluster, event.task, saves=True), event.at)
        return last_saves.hear(cluster, event)
    if cluster.tasks[event.task].is_aside:
        return last_saves.begin_aside(cluster, event.task)
    if not last_saves.is_possible(cluster):
        return cluster, ()
    cause = Cause(f"{event.task} received SIGTERM", event.at, host=cluster.tasks[event.task].host)
    return _save_and_end(cluster, Outcome.CANCELLED, restarts.PREEMPTED, event.at, cause, again=True)


def _on_exit_while_saving(cluster: Cluster, event: events.TaskExited) -> Step:
    if readiness.has_succeeded(cluster):  # the training was over before the step that was named
        return _end(cluster, Outcome.SUCCEEDED, 0, event.at)
    if (last_saves.has_saved(event) or cluster.tasks[event.task].is_aside) and last_saves.able(cluster):
        return cluster, ()
    failure = last_saves.failure_of(cluster, event)
    if failure is not None and cluster.saving is not None and cluster.saving.again:
        return _end(cluster, Outcome.FAILED, root_cause.given_code(failure), event.at, failure, again=True)
    return _end_saving(cluster, event.at, failure)


def _end_saving(cluster: Cluster, at: float, failure: Cause | None = None) -> Step:
    """The save is done, or its time is over, or a task has failed: end the attempt. The grace of the user was the time for the save."""
    assert cluster.saving is not None
    again, ending = cluster.saving.again, last_saves.ending_of(cluster, failure)
    cluster, actions = _end(cluster, ending.outcome, ending.exit_code, at, ending.cause, again=again)
    if cluster.ending is not None and cluster.phase is Phase.STOPPING:
        cluster = replace(cluster, ending=replace(cluster.ending, saved=ending.saved))
    if cluster.verdict is not None:
        cluster = replace(cluster, verdict=replace(cluster.verdict, saved=ending.saved))
    return cluster, last_saves.hurry(actions) if ending.saved is None else actions


# --- starting again ----------------------------------------------------------------------------


def _begin_attempt(cluster: Cluster, at: float) -> Step:
    """Start the next attempt of the whole cluster, with the same plan if no host was lost."""
    number = cluster.attempt + 1
    cluster = replace(cluster, attempt=number, attempt_at=at, formed_at=None, ending=None, again=False, is_due=False, resume_at=None)
    if cluster.needs_hosts or cluster.is_shrunk:  # what has come back is taken in
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
            return _run_out(cluster, at, Cause(f"the run was not over after {limits.run_s:g} s (--timeout){waits}", at), again=False)
        case "allocation" if cluster.phase is Phase.STOPPING:
            return replace(cluster, is_due=True), ()
        case "run":
            return _end_saving(cluster, at)
        case "allocation":
            code = restarts.PREEMPTED if cluster.policy.requeues else DEADLINE
            cause = Cause("the time of its allocation is nearly over", at)
            if last_saves.is_possible(cluster) or cluster.saving is not None:
                return _save_and_end(cluster, Outcome.TIMED_OUT, code, at, cause)
            return _run_out(cluster, at, cause, again=False, code=code)
        case "save":
            what = f"the time of the run is over in {limits.save_before_s:g} s (--save-before)"
            code = restarts.PREEMPTED if cluster.policy.requeues else DEADLINE
            return _save_and_end(cluster, Outcome.TIMED_OUT, code, at, Cause(what, at), limit_s=limits.save_before_s)
        case "unsaved":
            return _end_saving(cluster, at)
        case "name":
            return last_saves.name(cluster)
        case "resume":
            return _begin_attempt(cluster, at)
        case "prepare":
            late = readiness.unprepared(cluster)
            has = "has" if len(late) == 1 else "have"
            what = f"{group_tasks(late)} {has} not ended {limits.prepare_s:g} s after the start (--prepare-timeout)"
            return _run_out(cluster, at, Cause(what, at, host=cluster.tasks[late[0]].host))
        case "start":
            awaited = readiness.awaited(cluster)
            formed = "the restarted tasks had not come up" if cluster.formed_at is not None else "the cluster had not formed"
            what = f"{formed} {limits.start_s:g} s after its start (--start-timeout); {readiness.describe_awaited(cluster, awaited)}"
            return _run_out(cluster, at, Cause(what, at, host=awaited[0].host if awaited else ""))
        case "hang":
            what = f"no task has written or reported anything for {limits.hang_s:g} s (--hang-timeout)"
            return _run_out(cluster, at, Cause(f"{what}; {absent}" if absent else what, at))
        case "alone":
            return _begin_alone(cluster, at)
    return cluster, ()


def _run_out(cluster: Cluster, at: float, cause: Cause, *, again: bool = True, code: int = DEADLINE) -> Step:
    running = running_tasks(cluster)
    cluster, actions = _end(cluster, Outcome.TIMED_OUT, code, at, cause, again=again)
    actions = (events.CollectStacks(running), *actions) if running else actions
    return replace(cluster, is_due=not restarts.will_restart(cluster)), actions
