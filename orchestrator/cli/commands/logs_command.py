"""``orch logs``: the output of the tasks of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from datetime import time as datetime_time
from pathlib import Path
from typing import Any, Literal

import click

from worker.machine.clock import now
from worker.protocol.task_id import PREPARE, STREAMS, TASK_TYPES, TENSORBOARD
from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, Problem, SpecError, UsageError
from ...model.settings.durations import seconds_of
from ...model.slots import behind_the_chief
from ...model.strategies import named
from ...record.log_index import KeptMarks
from ...record.log_reader import LogReader
from ...record.run_directory import RunDir
from ...record.run_store import check_attempt, list_runs, no_tasks_yet, plan_of
from ...record.run_view import RunView
from ...record.text.log_view import LogView, wants_color
from ...record.text.same_lines import APART_S
from .. import completion
from ..options import Count, color_options, find_and_name_others, home_option, only_tasks

APART_AFTERWARDS_S = 30.0
"""Seconds between equal lines that `--fold` shows as one, of a run that is not followed: no one waits for the lines that are held."""

_TASK = re.compile(rf"({'|'.join((*TASK_TYPES, PREPARE, TENSORBOARD))}|master)(-\d*)?")


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool
    since: str | None
    until: str | None
    tail: int | None
    grep: str | None
    stream: str | None
    attempt: int | None
    timestamps: bool
    merge: bool
    fold: bool
    no_prefix: bool
    color: Literal["auto", "always", "never"]
    everything: bool
    as_json: bool

    def view(self, tasks: Sequence[str], shown: Collection[str] | None, behind: Sequence[str]) -> LogView:
        return LogView(
            tasks,
            color=not self.as_json and wants_color(self.color),
            fold=not (self.everything or self.as_json),
            grep=_pattern(self.grep),
            timestamps=self.timestamps,
            prefix=not self.no_prefix,
            as_json=self.as_json,
            only=shown,
            once_s=(APART_S if self.follow else APART_AFTERWARDS_S) if self.fold else None,
            behind=behind,
        )


@click.command("logs")
@click.argument("names", nargs=-1, metavar="[RUN] [TASK]...", shell_complete=completion.runs_and_tasks)
@home_option
@click.option("--task", "more", multiple=True, hidden=True, shell_complete=completion.tasks)  # as orch stacks has it
@click.option("-f", "--follow", is_flag=True, help="Show new lines until the run is over, then how it ended.")
@click.option("--since", metavar="T", help="Begin at this time: 90s, 10m, 2h or 1d ago, 14:30, or 2026-11-21T14:30.")
@click.option("--until", metavar="T", help="End at this time, written as for --since.")
@click.option("-n", "--tail", type=Count(0), metavar="N", help="Begin with the last N lines of each stream.")
@click.option("--grep", metavar="RE", help="Show only lines that match this regular expression.")
@click.option("--stream", type=click.Choice(STREAMS), metavar="|".join(STREAMS), help="Show only this stream.")
@click.option("--attempt", type=Count(1), metavar="N", help="Show this attempt. [default: the last attempt of each task]")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with the time at which orch saw the line, about a second late.")
@click.option("--merge", is_flag=True, help="Show the lines of all tasks in the order of time, which orch knows to about a second.")
@click.option("--fold", is_flag=True, help="Show a line that several tasks write only once: worker-0..7 | ..., in the order of time.")
@click.option("--no-prefix", is_flag=True, help="Do not begin each line with the name of its task.")
@color_options
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
def logs_command(names: Sequence[str], home: Path, more: Sequence[str], **values: Any) -> int:
    """Show the output of the tasks of RUN (default: the latest run). TASK is a task such as worker-0, or a type such as worker.

    \b
    Examples:
      orch logs                              the output of all tasks
      orch logs -f worker-0                  one task, until the run is over
      orch logs worker --tail 20             the last 20 lines of each worker
      orch logs --since 10m --grep 'loss|Error'
      orch logs -f --fold                    all tasks, equal lines only once
    """
    given = LogOptions(**values)
    if given.fold and given.as_json:
        raise UsageError("--fold and --json: with --json each line of each task is an object of its own; leave out one of the two")
    if given.until is not None and (given.follow or given.tail is not None):
        raise UsageError("--until ends before the newest lines, with which --follow and --tail begin; leave out one of the two")
    run, wanted = _split(home, [*names, *more])
    if given.follow:
        _await_plan(run)
    planned = plan_of(run)
    tasks = [str(task.id) for task in planned.tasks]
    shown = only_tasks(wanted, tasks)
    check_attempt(run, given.attempt)
    present = datetime.now().astimezone()
    since = None if given.since is None else KeptMarks(run, moment(given.since, present))
    until = None if given.until is None else moment(given.until, present, "--until")
    view = given.view(tasks, shown, () if wanted else behind_the_chief(planned.spec.counts, named(planned.spec.strategy)))
    streams = (given.stream,) if given.stream else STREAMS
    chosen = [task for task in tasks if shown is None or task in shown]
    output = LogReader(run, chosen, view, streams, attempt=given.attempt, tail=given.tail, since=since, until=until, follows=given.follow)
    if given.merge or given.fold:
        output.merge()
    for _ in RunView(run).looks() if given.follow else (False,):
        output.show()
        if given.follow and not given.as_json:
            output.write(view.idle(now()))
    output.write(view.finish())
    if view.folded_note:
        click.echo(f"orch: {view.folded_note}", err=True)
    if given.follow and not given.as_json:
        _show_end(run)
    return 0


def _await_plan(run: RunDir) -> None:
    """Returns when the run has a plan, or has ended. Says what is waited for."""
    said = ""
    for lives in RunView(run).looks():
        if not lives or run.read_plan() is not None:
            return
        if (reason := no_tasks_yet(run)) != said:
            click.echo(f"orch: {run.run_id} has {reason}; waiting for them", err=True)
        said = reason


def _show_end(run: RunDir) -> None:
    """Prints how a run that is over has ended."""
    from ...record.report import report_again  # not for the logs of a run that goes on

    try:
        lines = report_again(run)
    except OrchError as error:
        lines = [str(error)]
    click.echo("\n".join(f"orch: {line}" for line in lines), err=True)


def _split(home: Path, names: Sequence[str]) -> tuple[RunDir, list[str]]:
    """The run and the names of tasks: a word that looks like a task is a task, and another word is the run."""
    wanted = [name for name in names if _TASK.fullmatch(name)]
    others = [name for name in names if name not in wanted]
    if len(others) > 1:
        raise UsageError(f"{' and '.join(others)}: at most one of them can be the run; a task has a name such as worker-0")
    try:
        return find_and_name_others(home, others[0] if others else None), wanted
    except UsageError as error:
        if others and not any(run.run_id.startswith(others[0]) for run in list_runs(home)):  # the word may have been meant for a task
            raise UsageError(f"{error}; a task has a name such as worker-0") from None
        raise


def moment(text: str, present: datetime, option: str = "--since") -> float:
    """A time that a user has written, in seconds since the epoch. Raises `SpecError`.

    ``90`` (seconds ago), ``90s``, ``2h30m``, ``1d``, ``1d ago``, ``14:30`` (the last one), ``2026-11-21T14:30``.
    A time without a zone is in the zone of `present`.
    """
    span = text.removesuffix(" ago")
    ago = float(span) if re.fullmatch(r"\d+(\.\d+)?", span, re.ASCII) else None if ":" in span else seconds_of(span)
    try:
        if ago is not None:
            return (present - timedelta(seconds=ago)).timestamp()
        if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d+)?)?", text, re.ASCII):
            at = datetime.combine(present.date(), datetime_time.fromisoformat(text), present.tzinfo)
            return (at if at <= present else at - timedelta(days=1)).timestamp()
        at = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return (at if at.tzinfo else at.replace(tzinfo=present.tzinfo)).timestamp()
    except (ValueError, OverflowError):
        remedy = "write 90s, 10m, 2h30m or 1d ago, or 14:30, or 2026-11-21T14:30"
        raise SpecError(Problem(option, f"{text!r} is not a time", remedy)) from None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise SpecError(Problem("--grep", f"{text!r} is not a regular expression: {error}")) from None
