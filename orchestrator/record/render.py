"""Runs as text for people: what just happened, the failure report, the table of tasks. Text only; nothing is printed here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..model import blame, events, lifecycle, restarts
from ..model.cluster import Cause, Cluster, Outcome, Phase, TaskState, TaskStatus, Verdict
from ..model.endings import describe_code
from ..model.formation import describe_gone, group_tasks
from ..model.plan import Plan
from ..model.spec import SINGLE_TASK_STRATEGIES
from . import stacks
from .lines import clean
from .rundir import RunDir

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024
TRACEBACK_LINES = 60
PAST_LINES = 5
"""How many earlier attempts the failure report tells of."""
MOST_OTHERS = 8
"""How many of the tasks that failed later have a line of their own."""
LINE_CHARACTERS = 500
"""The longest line that the failure report repeats."""
_HEADLINES = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.TIMED_OUT: "ran out of time",
    Outcome.BROKEN: "broke down",
}


def describe_seconds(seconds: float) -> str:
    """``0.4 s``, ``2 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:  # what rounds to 60.0 is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def describe_plan(planned: Plan) -> str:
    """One line at the start of a run."""
    hosts = ", ".join(host.name for host in planned.hosts)
    tasks = group_tasks(str(task.id) for task in planned.tasks)
    return f"run {planned.run_id}: {planned.spec.strategy}, {tasks} on {hosts}"


def narrate(before: Cluster, after: Cluster, event: events.Event) -> str | None:
    """What an event means to somebody who watches, in a line; None if it means nothing to them."""
    if before.phase is not Phase.STOPPING and after.phase in (Phase.STOPPING, Phase.DONE):
        return _narrate_ending(after)
    if after.phase is Phase.RESTARTING and before.phase is not Phase.RESTARTING:
        return _narrate_restart(after)
    if after.attempt != before.attempt:
        alone = [name for name in before.alone if name not in after.alone and after.attempt_at == before.attempt_at]
        return f"{group_tasks(alone)} {_starts(alone)} again alone (attempt {after.attempt})" if alone else f"attempt {after.attempt}"
    if isinstance(event, events.StopAsked) and before.phase is Phase.STOPPING:
        return "it is not started again" if before.again and not after.again else "again: killing what is left"
    if before.phase is Phase.STARTING and after.phase is Phase.RUNNING and len(after.tasks) > 1:
        took = (after.formed_at or after.attempt_at) - after.attempt_at
        gone = describe_gone(after)
        up = sum(not task.has_ended or task.up_at is not None for task in after.tasks.values())
        if gone:
            return f"{up} of {len(after.tasks)} tasks are up after {describe_seconds(took)}; {gone}; the others may wait for ever"
        if not after.policy.opens_ports and after.policy.strategy not in SINGLE_TASK_STRATEGIES:
            return f"{len(after.tasks)} tasks are started; nobody waits for the ports of a command without --start-timeout"
        return f"cluster formed after {describe_seconds(took)}: {len(after.tasks)} tasks are up"
    if isinstance(event, events.TaskExited) and event.task in after.alone:
        pause = max(0.0, (after.tasks[event.task].restart_at or event.at) - event.at)
        return f"{event.task} failed ({describe_code(event.code, event.killed)}); it is started again alone in {describe_seconds(pause)}"
    if isinstance(event, events.TaskExited) and event.code and after.phase is not Phase.STOPPING:
        return f"{event.task} failed ({describe_code(event.code, event.killed)}); the training goes on"
    return None


def _starts(tasks: Sequence[str]) -> str:
    return "starts" if len(tasks) == 1 else "start"


def _narrate_restart(after: Cluster) -> str:
    """``attempt 1 ended after 12.3 s; starting again in 1.1 s (restart 1 of 3)``"""
    last = after.past[-1]
    took = describe_seconds(max(0.0, last.ended_at - last.started_at))
    pause = describe_seconds(max(0.0, (after.resume_at or 0.0) - last.ended_at))
    spent = sum(not attempt.free for attempt in restarts.relevant(after.past))
    count = "does not count against --max-restarts" if last.free else f"restart {spent} of {after.policy.restart.max}"
    return f"attempt {last.attempt} ended after {took}; starting again in {pause} ({count})"


def _narrate_ending(after: Cluster) -> str | None:
    ending = after.ending or after.verdict
    cause = ending.cause if ending else None
    running = [task.name for task in after.tasks.values() if not task.has_ended]
    first = headline(cause) if cause else "done" if running else None
    lost = blame.describe_loss(after, cause.task) if cause and cause.task else ""
    if lost:
        first = f"{first}: it lost {lost}"
    if not running:
        return first
    grace = f"SIGTERM now, SIGKILL after {after.policy.grace_s:g} s" if after.policy.grace_s else "SIGKILL"
    again = "; Ctrl-C again kills them at once" if ending and ending.exit_code == 130 else ""
    if lifecycle.comes_again(after, after.stopping_at or 0.0):
        again = "; then all start again"
    return f"{first}; stopping {group_tasks(running)} ({grace}{again})"


def headline(cause: Cause) -> str:
    """A cause in a few words, ``worker-1 failed (exit code 7)``."""
    if not cause.task:
        return cause.what
    code = f" ({describe_code(cause.code, cause.killed)})" if cause.code else ""
    return f"{cause.task} {cause.what}{code}"


def report(verdict: Verdict, run: RunDir, cluster: Cluster | None, shown_dir: Path | None = None) -> str:
    """The end of a run: what came first, last on the screen."""
    directory = shown_dir or run.path
    took = describe_seconds(max(0.0, verdict.ended_at - verdict.started_at))
    again = f", in attempt {verdict.attempt}" if verdict.past else ""
    lines = [f"{run.run_id} {_HEADLINES[verdict.outcome]} after {took}{again}"]
    lines += _describe_past(verdict)
    cause = verdict.cause
    if cause is not None and cause.task:
        lines += _describe_failure(cause, run, directory)
        lines += _describe_suspect(cause, run, cluster)
        lines += [f"  what to do: {cause.remedy}"] if cause.remedy else []
        lines += _describe_others(cause, cluster)
    elif cause is not None:
        lines.append(f"  {cause.what}")
        if verdict.outcome is Outcome.TIMED_OUT and cluster is not None:
            lines += describe_stacks(run, cluster)
        lines.append(f"  logs: {directory}")
    if verdict.gave_up:
        lines.append(f"  {verdict.gave_up}")
    if verdict.outcome is not Outcome.SUCCEEDED:
        lines.append(f"  exit code {verdict.exit_code}{_explain_given_code(verdict)}")
    return clean("\n".join(lines))


def _describe_past(verdict: Verdict) -> list[str]:
    """A line for each earlier failure, the newest last."""
    lines = []
    for attempt in verdict.past[-PAST_LINES:]:
        who = f"attempt {attempt.attempt}{f' of {attempt.task} alone' if attempt.task else ''}"
        took = describe_seconds(max(0.0, attempt.ended_at - attempt.started_at))
        lines.append(f"  {who} ended after {took}: {headline(attempt.cause) if attempt.cause else 'for no known reason'}")
    left_out = len(verdict.past) - len(lines)
    return [f"  {left_out} earlier attempts: see events.jsonl", *lines] if left_out else lines


def describe_stacks(run: RunDir, cluster: Cluster) -> list[str]:
    """Where the tasks were when their stacks were last collected, a line a place."""
    answers = {name: _last_answer(run, name, task.attempt) for name, task in cluster.tasks.items()}
    found = stacks.summarise({name: answer for name, answer in answers.items() if answer})
    return ["  where the tasks were:", *_indent(found)] if found else []


def _last_answer(run: RunDir, task: str, attempt: int) -> stacks.Answer:
    try:
        return stacks.parse(run.stacks_path(task, attempt).read_text(errors="replace"))
    except OSError:
        return stacks.Answer()


def _describe_suspect(cause: Cause, run: RunDir, cluster: Cluster | None) -> list[str]:
    """Where the task was that the first failure was about, if it was asked before it was stopped."""
    if not cause.suspect or cluster is None:
        return []
    answer = _last_answer(run, cause.suspect, cluster.tasks[cause.suspect].attempt)
    return [f"  {cause.suspect} was {stacks.place(stacks.Answer(answer.frames))}"] if answer.frames else []


def _describe_failure(cause: Cause, run: RunDir, directory: Path) -> list[str]:
    how = describe_code(cause.code, cause.killed) if cause.code else f"it {cause.what}" if cause.code == 0 else cause.what
    lines = [f"  first failure: {cause.task} on {cause.host}: {how}"]
    if cause.code and cause.what != "failed":
        lines[0] += f"; it {cause.what}"
    stream = "stderr"
    if cause.failure is not None:
        lines += _indent(_shorten(cause.failure.traceback.rstrip().splitlines()))
    elif cause.code is not None:
        stream, tail = _last_words(run, cause.task, cause.attempt)
        lines += [f"  its last lines on {stream}:", *_indent(tail)] if tail else ["  it wrote nothing"]
    log = run.log_path(cause.task, cause.attempt, stream).relative_to(run.path)
    return [*lines, f"  log: {directory / log}"]


def _describe_others(cause: Cause, cluster: Cluster | None) -> list[str]:
    if cluster is None:
        return []
    lost = {end.task: end.lost for end in cause.secondary}
    said = {name: lost[name] for name in cluster.tasks if name in lost}
    others = [task for task in cluster.tasks.values() if task.name not in (cause.task, *said)]
    stopped = [task.name for task in others if task.state is TaskState.STOPPED]
    failed = [task for task in others if task.state is TaskState.FAILED]
    lines = [f"  stopped because of it: {group_tasks(stopped)}"] if stopped else []
    lines += _some([f"  failed because of it: {names}: lost {whom}" for whom, names in _group_lost(said)])
    return lines + _some([f"  failed after it: {task.name} ({describe_code(task.code or 0, task.killed)})" for task in failed])


def _some(lines: list[str]) -> list[str]:
    left_out = len(lines) - MOST_OTHERS
    return [*lines[:MOST_OTHERS], f"    and {left_out} more: orch ps"] if left_out > 0 else lines


def _group_lost(said: Mapping[str, str]) -> list[tuple[str, str]]:
    by_loss: dict[str, list[str]] = {}
    for task, lost in said.items():
        by_loss.setdefault(lost, []).append(task)
    return [(lost, group_tasks(names)) for lost, names in by_loss.items()]


def _explain_given_code(verdict: Verdict) -> str:
    code = verdict.cause.code if verdict.cause else None
    if verdict.outcome is not Outcome.FAILED or code in (None, verdict.exit_code):
        return ""
    return f" ({verdict.cause.task if verdict.cause else ''} ended with {code}, which means something else here)"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _shorten(lines: Sequence[str]) -> list[str]:
    if len(lines) <= TRACEBACK_LINES:
        return list(lines)
    half = TRACEBACK_LINES // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} lines left out …", *lines[-half:]]


def _last_words(run: RunDir, task: str, attempt: int) -> tuple[str, list[str]]:
    """The last lines of a task's stderr, or of its stdout if it wrote nothing there."""
    for stream in ("stderr", "stdout"):
        try:
            with open(run.log_path(task, attempt, stream), "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - TAIL_BYTES))
                data = file.read()
        except OSError:
            continue
        lines = [_cut(clean(line.rpartition("\r")[2])) for line in data.decode("utf-8", "backslashreplace").rstrip().split("\n")]
        if any(lines):
            return stream, lines[-TAIL_LINES:]
    return "stderr", []


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} … {len(line) - LINE_CHARACTERS:,} characters left out"


def table(cluster: Cluster, now: float) -> str:
    """The tasks of a run, a line each."""
    rows = [("TASK", "HOST", "STATE", "PID", "SINCE", "NOTE")]
    rows += [_row(task, now) for task in cluster.tasks.values()]
    rows = [(*row[:5], clean(" ".join(row[5].split()))) for row in rows]  # the note is what a task or an error says
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip() for row in rows)


def _row(task: TaskStatus, now: float) -> tuple[str, str, str, str, str, str]:
    since = task.ended_at or task.up_at or task.started_at
    note = ""
    if task.code:
        note = describe_code(task.code, task.killed)
        if task.restart_at is not None:
            note += f"; started again in {describe_seconds(max(0.0, task.restart_at - now))}"
    elif task.report:
        note = " ".join(f"{key}={_short(value)}" for key, value in task.report.items())
    elif task.waiting and not task.has_ended:
        note = task.waiting
    age = describe_seconds(max(0.0, now - since)) if since else ""
    return (task.name, task.host, task.state.value, str(task.pid or ""), age, note)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe_moment(at: float) -> str:
    """Date and time of day, in the local zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
