"""The end of an attempt: what ends it is decided, its tasks stop, and then a restart or the verdict of the run follows. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...errors import DEADLINE
from ..cause import remedies, root_cause
from ..planning import input_counts
from ..planning.input_counts import InputCounts
from ..state import events
from ..state.cluster import Cause, Cluster, Outcome, Phase, TaskState, Verdict
from ..state.events import Action
from ..task_names import group_tasks
from . import not_finite, readiness, restarts

ABOUT_APART = "a-model-outside-of-the-scope"
"""The heading of docs/why.md."""
Step = tuple[Cluster, tuple[Action, ...]]


def end(cluster: Cluster, outcome: Outcome, code: int, at: float, cause: Cause | None = None, *, again: bool = False) -> Step:
    """Decide the ending and stop the running tasks. `again`: another attempt may follow."""
    ending = Verdict(outcome, code, cluster.attempt, cluster.started_at, at, cause)
    if cluster.phase is Phase.STOPPING:
        if not again:  # no restart: a host that breaks now would also break the next attempt
            # The first ending stays, unless it is a restart that the user has requested, which is no failure.
            first = ending if restarts.is_requested_restart(cluster) else cluster.ending
            cluster = replace(cluster, ending=first, again=False)
        return finish_if_empty(cluster, at)
    if cluster.phase is Phase.PREPARING:  # the members will not start
        withdrawn = {task.name: replace(task, state=TaskState.STOPPED, ended_at=at, swept=True) for task in cluster.members}
        cluster = replace(cluster, tasks={**cluster.tasks, **withdrawn})
    cluster = replace(cluster, phase=Phase.STOPPING, ending=ending, again=again, saving=None)
    running = running_tasks(cluster)
    if running:
        return cluster, (events.Stop(running, cluster.policy.timeouts.grace_s),)
    return finish_if_empty(cluster, at)


def running_tasks(cluster: Cluster) -> tuple[str, ...]:
    """The names of the tasks that have not ended."""
    return tuple(task.name for task in cluster.tasks.values() if not task.has_ended)


def finish_if_empty(cluster: Cluster, at: float) -> Step:
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
    """Return what is odd about the tasks, about their input and their last reports, one line each."""
    may_wait = cluster.ending is None or cluster.ending.outcome in (Outcome.CANCELLED, Outcome.TIMED_OUT)
    waits = readiness.describe_serving(cluster) if may_wait else ""
    final = all(task.state is TaskState.SUCCEEDED and task.swept for task in cluster.tasks.values() if task.trains)
    return (
        *filter(None, [waits, _describe_apart(cluster)]),
        *input_counts.judge(_inputs(cluster), final=final),
        *not_finite.judge(cluster),
    )


def _describe_apart(cluster: Cluster) -> str:
    """Warn that workers have trained models of their own, which a baseline's `fit` may mean; empty: none has."""
    names = [task.name for task in cluster.tasks.values() if task.trains_apart]
    if not names:
        return ""
    own = "this task may have a model of its own" if len(names) == 1 else "each may have a model of its own"
    what = f"a fit has trained a model from outside of the scope of the strategy, so {own}"
    remedy = "to train it together, make and compile the model inside of `with strategy.scope():`"
    return f"{group_tasks(names)}: {what}. fix: {remedy}. more: orch help {ABOUT_APART}"


def run_out(
    cluster: Cluster,
    at: float,
    what: str,
    remedy: remedies.Remedy = remedies.NONE,
    *,
    host: str = "",
    again: bool = True,
    code: int = DEADLINE,
) -> Step:
    """End the attempt, or the run, at a deadline."""
    cause, running = Cause(what, at, host=host, remedy=remedy.text, about=remedy.about), running_tasks(cluster)
    cluster, actions = end(cluster, Outcome.TIMED_OUT, code, at, cause, again=again)
    actions = (events.CollectStacks(running), *actions) if running else actions
    return replace(cluster, is_due=not restarts.will_restart(cluster)), actions
