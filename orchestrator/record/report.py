"""The report at the end of a run: the first failure, its details, a remedy, and the failures that followed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from worker.protocol.task_id import STREAMS
from worker.values.excerpts import WHERE, shorten_line
from worker.values.words import count_of

from ..errors import OrchError
from ..model.cause import graph_errors, remedies, root_cause, together
from ..model.cause.exit_status import describe_code
from ..model.state.cluster import Cause, Cluster, Outcome, TaskState, Verdict
from ..model.task_names import group_tasks
from .follower import Follower
from .run_directory import RunDir
from .run_files import read_file, size_of
from .run_progress import read_cluster
from .text.event_messages import describe_outcome, headline
from .text.format import describe_seconds
from .text.lines import LineSplitter, clean
from .text.noise import Noise

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024
TRACEBACK_LINES = 60
PAST_LINES = 5
"""The most earlier attempts that the report shows."""
MOST_OTHERS = 8
"""The most lines about tasks that failed later."""
LINE_CHARACTERS = 500
"""The most characters of a line that the report shows."""
MESSAGE_LINES = 24
"""The most lines of an exception's message that the report shows."""
UNFORMED = "build a strategy of tf.distribute, which reads TF_CONFIG; for a single run of the script: --strategy none"


def report(verdict: Verdict, run: RunDir, cluster: Cluster, shown_dir: Path | None = None) -> str:
    """The text of the report. `shown_dir`: the run's directory, if the report shall show another path than `_shown`."""
    directory = shown_dir or _shown(run.path)
    took = describe_seconds(max(0.0, verdict.ended_at - verdict.started_at))
    which = f", in attempt {verdict.attempt}" if verdict.past else ""
    lines = [f"{run.run_id} {describe_outcome(verdict.outcome)} after {took}{which}"]
    lines += _describe_past(verdict)
    cause, step, saves = verdict.cause, None, ""
    if verdict.saved is None and verdict.outcome not in (Outcome.SUCCEEDED, Outcome.BROKEN):
        step, saves = _look_for_saves(run)
    if cause is not None and cause.task:
        lines += _describe_failure(cause, run, directory)
        lines += _describe_stacks(run, cluster, [cause.suspect]) if cause.suspect else []
        lines += _describe_calls(run, cluster) if cause.about in (together.CALLS, remedies.ENDS_EARLY) else []
        lines += _describe_remedy(cause, run, directory, step)
        lines += _describe_others(cause, cluster)
    elif cause is not None:
        lines += [f"  {line}" for line in cause.what.splitlines()]
        if verdict.outcome is Outcome.TIMED_OUT:
            lines += _describe_stacks(run, cluster, cluster.tasks)
        lines += _describe_remedy(cause, run, directory, step)
        lines += [] if run.is_gone else [f"  logs: {directory}"]
    if verdict.saved is not None:
        again = "the engine starts the run again; or run" if cluster.policy.requeues else "to continue"
        lines.append(f"  {again}: orch up -f {directory / 'spec.yaml'} --resume {run.run_id}")
    elif step is not None and (cause is None or remedies.AGAIN not in cause.remedy):
        lines.append(f"  to continue after step {step}: orch up -f {directory / 'spec.yaml'} --resume {run.run_id}")
    lines += [saves] if saves else []
    if verdict.gave_up:
        lines.append(f"  {verdict.gave_up}")
    if verdict.warning:
        lines += [f"  warning: {verdict.warning}", f"  fix: {UNFORMED}", f"  more: orch help {remedies.UNFORMED}"]
    lines += [f"  {line}" for line in verdict.remarks]
    lines += [f"  still there: {left}" for left in verdict.remains]
    if verdict.outcome is not Outcome.SUCCEEDED:
        lines.append(f"  exit code {verdict.exit_code}{_explain_given_code(verdict)}")
    return clean("\n".join(lines))


def _describe_remedy(cause: Cause, run: RunDir, directory: Path, step: int | None) -> list[str]:
    """The fix, with a command that can be pasted in place of `remedies.AGAIN`, and where more is said. `step`: that of a checkpoint."""
    fix = cause.remedy
    if remedies.AGAIN in fix and b'"function"' not in _settings_of(run):
        resume = "" if step is None else f" --resume {run.run_id}"
        fix = fix.replace(remedies.AGAIN, f"orch up -f {directory / 'spec.yaml'}{resume}")
        fix += "" if step is None else f"; continues after step {step}"
    return [f"  fix: {fix}"] * bool(fix) + [f"  more: orch help {cause.about}"] * bool(cause.about)


def _settings_of(run: RunDir) -> bytes:
    with contextlib.suppress(OSError):
        return read_file(run.path / "spec.yaml")
    return b""


def _look_for_saves(run: RunDir) -> tuple[int | None, str]:
    """The step of the checkpoint with which a run that has not succeeded is continued, or a line that says that there is none."""
    with contextlib.suppress(OrchError, OSError):
        # A spec has only what was given, so most runs are done here: the verdict waits for these lines.
        if b'"checkpoints"' not in _settings_of(run) and not (run.path / "checkpoints").is_dir():
            return None, ""
        from . import saves_of_run

        base, spec = saves_of_run.directory(run), run.read_spec()
        save = None if saves_of_run.is_remote(base) else saves_of_run.newest(base)
        if save is not None:
            return save.step, ""
        if spec.checkpoints.fit and not saves_of_run.is_remote(base):
            every = "" if spec.checkpoints.every else "; --set checkpoints.every=STEPS saves sooner than at the end of an epoch"
            return None, f"  there is no checkpoint to continue from: the run has ended before its first one{every}"
    return None, ""


def report_again(run: RunDir) -> list[str]:
    """The lines of the report of a run that is over, from its record. Raises `OrchError` if the run has no verdict."""
    verdict = run.read_verdict()
    if verdict is None:
        raise OrchError(f"the controller of {run.run_id} died before it could say how the run ended; logs: {run.path}")
    cluster = Cluster()
    with contextlib.suppress(OrchError):  # the verdict says most, even if the events cannot be read
        cluster = read_cluster(run)
    return report(verdict, run, cluster).splitlines()


def _shown(path: Path) -> Path:
    """The path relative to the working directory, if it lies there."""
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(os.getcwd())
    return path


def _describe_past(verdict: Verdict) -> list[str]:
    lines = []
    for attempt in verdict.past[-PAST_LINES:]:
        who = f"attempt {attempt.attempt}{f' of {attempt.task} alone' if attempt.task else ''}"
        took = describe_seconds(max(0.0, attempt.ended_at - attempt.started_at))
        took += f" with {count_of(attempt.workers, 'worker')}" if attempt.workers else ""
        lines.append(f"  {who} ended after {took}: {headline(attempt.cause) if attempt.cause else 'for no known reason'}")
    left_out = len(verdict.past) - len(lines)
    return [f"  {left_out} earlier attempts: see events.jsonl", *lines] if left_out else lines


def _describe_stacks(run: RunDir, cluster: Cluster, tasks: Iterable[str]) -> list[str]:
    """The lines of code at which these tasks were when their stacks were last collected."""
    from . import stack_report  # few reports show stacks, and all wait for its regular expressions

    paths = {name: run.stacks_path(name, cluster.tasks[name].attempt) for name in tasks if name in cluster.tasks}
    answers = {name: stack_report.parse(stack_report.read_from(path)) for name, path in paths.items()}
    found = stack_report.summarise({name: answer for name, answer in answers.items() if answer})
    return ["  where the tasks were:", *_indent(found)] if found else []


def _describe_calls(run: RunDir, cluster: Cluster) -> list[str]:
    """In which line of the program each task was, by its exception, or by its stacks: the tasks made calls that do not fit together, or one
    of them waited in a call that another one did not make."""
    from . import stack_report

    lines = []
    for task in (task for task in cluster.tasks.values() if task.trains):
        place = graph_errors.place_in(task.failure.traceback) if task.failure is not None else ""
        answer = stack_report.parse(stack_report.read_from(run.stacks_path(task.name, task.attempt)))
        if place or answer:
            lines.append(shorten_line(f"{task.name}: {place or stack_report.place(answer)}", LINE_CHARACTERS))
    return ["  where the tasks were:", *_indent(lines)] if lines else []


def _describe_failure(cause: Cause, run: RunDir, directory: Path) -> list[str]:
    how = describe_code(cause.code, cause.killed) if cause.code else f"it {cause.what}" if cause.code == 0 else cause.what
    lines = [f"  first failure: {cause.task} on {cause.host}: {how}"]
    if cause.code and cause.what != "failed":
        lines[0] += f"; it {cause.what}"
    stream = "stderr"
    if cause.failure is not None:
        trace = cause.failure.traceback.rstrip().splitlines()
        message = next((at for at in reversed(range(len(trace))) if trace[at].startswith(cause.failure.type)), len(trace))
        said = graph_errors.without_arguments(graph_errors.without_frames(trace[message:]))
        lines += _indent([*_shorten(graph_errors.of_user(trace[:message]), TRACEBACK_LINES), *_shorten(said, MESSAGE_LINES)])
    elif cause.code is not None:
        stream, tail = last_words(run, cause.task, cause.attempt)
        lines += [f"  its last lines on {stream}:", *_indent(tail)] if tail else [f"  {cause.task} printed nothing of its own"]
    log = run.log_path(cause.task, cause.attempt, stream).relative_to(run.path)
    return [*lines, f"  log: {directory / log}"]


def _describe_others(cause: Cause, cluster: Cluster) -> list[str]:
    lost = {end.task: end.lost for end in cause.secondary}
    by_loss: dict[str, list[str]] = {}
    for name in filter(lost.__contains__, cluster.tasks):
        by_loss.setdefault(lost[name], []).append(name)
    others = [task for task in cluster.tasks.values() if task.name not in (cause.task, *lost)]
    stopped = [task.name for task in others if task.state is TaskState.STOPPED and task.started_at is not None]
    withdrawn = [task.name for task in others if task.state is TaskState.STOPPED and task.started_at is None]
    failed = [task for task in others if task.state is TaskState.FAILED]
    lines = [f"  stopped because of it: {group_tasks(stopped)}"] if stopped else []
    lines += [f"  not started because of it: {group_tasks(withdrawn)}"] if withdrawn else []
    lines += _first_of([f"  failed because of it: {group_tasks(names)}: lost {peer}" for peer, names in by_loss.items()])
    first = cluster.tasks.get(cause.task)
    same = [task.name for task in failed if first is not None and root_cause.has_ended_alike(task, first)]
    lines += [f"  failed with the same error: {group_tasks(same)}"] if same else []
    failed = [task for task in failed if task.name not in same]
    return lines + _first_of([f"  failed after it: {task.name} ({describe_code(task.code or 0, task.killed)})" for task in failed])


def _first_of(lines: list[str]) -> list[str]:
    left_out = len(lines) - MOST_OTHERS
    return [*lines[:MOST_OTHERS], f"    and {left_out} more: orch ps"] if left_out > 0 else lines


def _explain_given_code(verdict: Verdict) -> str:
    code = verdict.cause.code if verdict.cause else None
    if verdict.outcome is not Outcome.FAILED or code in (None, verdict.exit_code):
        return ""
    return f" ({verdict.cause.task if verdict.cause else ''} ended with {code}, which means something else here)"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _shorten(lines: Sequence[str], most: int) -> list[str]:
    """The lines, each of them short; without those in the middle if there are more than `most`."""
    if len(lines) > most:
        half = most // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} lines left out: {WHERE} …", *lines[-half:]]
    return [shorten_line(line, LINE_CHARACTERS) for line in lines]


def last_words(run: RunDir, task: str, attempt: int) -> tuple[str, list[str]]:
    """The last lines of a task's stderr, or else of its stdout, without TensorFlow's own messages (`noise`); and the stream's name."""
    for stream in reversed(STREAMS):
        path, splitter = run.log_path(task, attempt, stream), LineSplitter()
        try:
            data = Follower(path, offset=max(0, size_of(path) - TAIL_BYTES)).read(TAIL_BYTES)
        except (OSError, OrchError):
            continue
        lines = Noise(shows_losses=True).fold([*splitter.feed(data.rstrip()), *splitter.flush()])
        if any("Fatal Python error: " in line for line in lines):
            from .text import stack_frames

            lines = stack_frames.of_crash(lines)
        if any(lines):
            return stream, [shorten_line(line, LINE_CHARACTERS) for line in lines[-TAIL_LINES:]]
    return "stderr", []
