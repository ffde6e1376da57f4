"""The lines for people about what happens in a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace

from ...model.cause import root_cause
from ...model.cause.exit_status import describe_code
from ...model.policy import not_finite, restarts
from ...model.policy.readiness import describe_gone, describe_rest, describe_serving
from ...model.state import events
from ...model.state.cluster import Cause, Cluster, Outcome, Phase, Saving
from ...model.strategies import named
from ...model.task_names import group_tasks
from .format import describe_seconds
from .lines import clean


def describe_outcome(outcome: Outcome) -> str:
    """Return how a run ended, in words for people. JSON has the values of `Outcome`."""
    return "failed" if outcome is Outcome.BROKEN else outcome.value.replace("_", " ")


def say(text: str, head: str = "orch") -> None:
    """Print a line on stderr. A full disk is no error here: it ends the run where events are recorded."""
    with contextlib.suppress(OSError):
        print(f"{head}: {clean(text)}", file=sys.stderr, flush=True)


class Messages:
    """The viewer of a run: prints what happens. A subclass may say or show it elsewhere. No method may block."""

    def say(self, text: str) -> None:
        say(text)

    def on_output(self, task: str, attempt: int, stream: str, size: int) -> None:
        """The file of a stream has grown to this size. Only the console of an attached run shows output."""

    def on_event(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        text = describe_event(before, after, event)
        if text is not None:
            self.say(text)


def _describe_plan(cluster: Cluster) -> str:
    """One line at the start of a run, or of an attempt with a plan of its own."""
    which = f"run {cluster.run}" if cluster.attempt == 1 else f"attempt {cluster.attempt}"
    hosts = ", ".join(dict.fromkeys(task.host for task in cluster.tasks.values()))
    return f"{which}: {cluster.policy.strategy}, {group_tasks(cluster.tasks)} on {hosts}"


def describe_event(before: Cluster, after: Cluster, event: events.Event) -> str | None:
    """The line for an event that has changed `before` to `after`; None if users need not see this event."""
    match event:
        case events.RunNoted():
            return event.line
        case events.HostsAwaited() if after.awaits_plan:
            return event.reason or None
        case events.Planned() if before.awaits_plan and not after.awaits_plan:
            return _describe_plan(after)
        case _ if not after.tasks or (after.awaits_plan and after.attempt != before.attempt):
            return None  # the report says why the run has ended
    if after.saving is not None and after.saving != before.saving:
        return _describe_saving(before, after.saving)
    if not before.is_over and before.phase is not Phase.STOPPING and after.phase in (Phase.STOPPING, Phase.DONE):
        return _describe_ending(after)
    if after.phase is Phase.RESTARTING and before.phase is not Phase.RESTARTING:
        return _describe_restart(before, after)
    if after.attempt != before.attempt:
        if after.attempt_at == before.attempt_at:
            alone = [task.name for task in after.tasks.values() if task.attempt > before.attempt]
            return f"{group_tasks(alone)} {'starts' if len(alone) == 1 else 'start'} again alone (attempt {after.attempt})"
        return f"attempt {after.attempt}"
    if before.phase is Phase.PREPARING and after.phase is Phase.STARTING:
        return f"prepared after {describe_seconds(after.attempt_at - before.attempt_at)}; the tasks start"
    if isinstance(event, events.StopRequested) and before.phase is Phase.STOPPING:
        return "the restart is cancelled" if before.again and not after.again else "asked again: killing the remaining tasks"
    if before.phase is Phase.STARTING and after.phase is Phase.RUNNING and len(after.members) > 1:
        took = (after.formed_at or after.attempt_at) - after.attempt_at
        gone = describe_gone(after)
        rest = describe_rest(after)
        up = sum(not task.has_ended or task.up_at is not None for task in after.members)
        if gone:
            return f"{up} of {len(after.members)} tasks are up after {describe_seconds(took)}; {gone}; {rest}"
        if not after.policy.opens_ports and named(after.policy.strategy).opens_ports:
            return f"{len(after.members)} tasks have started; orch waits for the ports of a command only with timeouts.start_s"
        serving = describe_serving(after)
        return f"cluster formed after {describe_seconds(took)}: {len(after.members)} tasks are up{serving and f'; {serving}'}"
    if _may_serve(before, after, event) and (serving := describe_serving(after)) and not describe_serving(before):
        return serving
    if isinstance(event, events.TaskReported):
        return not_finite.news(before, after, event.task) or None
    if isinstance(event, events.TaskExited):
        failed = f"{event.task} failed ({describe_code(event.code, event.killed)})"
        task = after.tasks.get(event.task)
        if task is not None and task.restart_at is not None:
            return f"{failed}; it restarts alone{_after(task.restart_at - event.at)}"
        if event.code and after.phase is not Phase.STOPPING and after.saving is None:
            return f"{failed}; the training goes on"
    return None


def _may_serve(before: Cluster, after: Cluster, event: events.Event) -> bool:
    """True if this event may have left only tasks that serve. This is asked at each event, so it looks at one task, and not at all."""
    if isinstance(event, events.TaskExited):
        return True
    task = after.tasks.get(event.task) if isinstance(event, events.TaskEvent) else None
    return task is not None and task.serves and not before.tasks[task.name].serves


def _after(pause: float) -> str:
    return f" in {describe_seconds(pause)}" if pause > 0 else " at once"


def _find_other_cause(before: Cluster, after: Cluster) -> Cause | None:
    """The first cause of an attempt that restarts, if `_describe_ending` has named another task.

    The line of `_describe_ending` comes with the first exit. Only when all tasks have ended is it known which task was the first to fail.
    Of the last attempt the report says so.
    """
    said, cause = (before.ending.cause if before.ending else None), (after.ending.cause if after.ending else None)
    return cause if cause and cause.task and said and said.task != cause.task else None


def _describe_restart(before: Cluster, after: Cluster) -> str:
    """``attempt 1 ended after 12.3 s; starting again in 1.1 s (restart 1 of 3)``"""
    last = after.past[-1]
    took = describe_seconds(max(0.0, last.ended_at - last.started_at))
    pause = _after((after.resume_at or 0.0) - last.ended_at)
    count = _count_restarts(after, len(after.past))
    first = _find_other_cause(before, after)
    why = f", first failure: {headline(first)}" if first else ""
    if before.ending is None and last.cause is not None:  # all tasks are gone at once: no line has said why
        why = f": {headline(last.cause)}"
    return f"attempt {last.attempt} ended after {took}{why}; starting again{pause} ({count})"


def describe_attempt(cluster: Cluster, attempt: int, task: str) -> str:
    """``attempt 2: worker-1 failed (exit code 3) (restart 1 of 3)``: why `task` has this attempt; empty if it is not known."""
    for number, last in reversed([*enumerate(cluster.past, 1)]):
        if last.attempt < attempt and last.task in ("", task):
            why = f": {headline(last.cause)}" if last.cause is not None else ""
            return clean(f"attempt {attempt}{why} ({_count_restarts(cluster, number)})")
    return ""


def _count_restarts(cluster: Cluster, number: int) -> str:
    """``restart 1 of 3``: what the restart after the first `number` attempts takes from the budget."""
    past = cluster.past[:number]
    spent = sum(not attempt.free for attempt in restarts.relevant(past, past[-1].task))
    return "does not count against --max-restarts" if past[-1].free else f"restart {spent} of {cluster.policy.restart.max}"


def _describe_saving(before: Cluster, saving: Saving) -> str | None:
    """A line when a save on order begins, and when its step is named."""
    if before.saving is None:
        then = "all tasks start again" if saving.again else "the run ends"
        limit = "" if saving.until is None else f", in {describe_seconds(max(0.0, saving.until - saving.ending.ended_at))} at most"
        why = headline(saving.ending.cause) if saving.ending.cause else "the run is to end"
        return f"{why}; the training saves itself{limit}, and then {then}"
    return f"the training saves itself at the end of step {saving.step}" if saving.step != before.saving.step else None


def _describe_ending(after: Cluster) -> str | None:
    ending = after.ending or after.verdict
    cause = ending.cause if ending else None
    running = [task.name for task in after.tasks.values() if not task.has_ended]
    first = _headline_at_exit(cause, running) if cause else "done" if running else None
    lost = root_cause.describe_loss(after, cause.task) if cause and cause.task else ""
    if lost:
        first = f"{first}: it lost {lost}"
    if not running:
        return first
    grace = f"SIGTERM now, SIGKILL after {after.policy.timeouts.grace_s:g} s" if after.policy.timeouts.grace_s else "SIGKILL"
    again = "; Ctrl-C again kills them at once" if ending and ending.exit_code == 130 else ""
    if restarts.will_restart(after):
        again = "; then all tasks start again"
    return f"{first}; stopping {group_tasks(running)} ({grace}{again})"


def _headline_at_exit(cause: Cause, running: Sequence[str]) -> str:
    """The headline while tasks run: one of these may have failed before, and exits later (see `_find_other_cause`)."""
    return headline(replace(cause, what="has failed") if running and cause.what == "failed" else cause)


def headline(cause: Cause) -> str:
    """A cause in a few words: ``worker-1 failed (exit code 7)``."""
    if not cause.task:
        return "\n".join(line for line in cause.what.splitlines() if not line.startswith(("fix: ", "more: ")))
    code = f" ({describe_code(cause.code, cause.killed)})" if cause.code else ""
    return f"{cause.task} {cause.what}{code}"
