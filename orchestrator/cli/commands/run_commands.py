"""``orch ps``, ``orch wait`` and ``orch restart``: commands for runs of any terminal."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from worker.machine.clock import now
from worker.values.words import few

from ...control.engine_jobs import find, find_all
from ...control.requests import ask_restart
from ...errors import BROKEN, DEADLINE, OrchError, UsageError
from ...model.policy import restarts, stragglers
from ...model.settings.findings import nearest
from ...model.state.cluster import Cluster, Outcome, Phase
from ...model.state.progress import describe as describe_progress
from ...record import run_list
from ...record.run_directory import RunDir
from ...record.run_list import RunSummary, summarise
from ...record.run_progress import read_cluster
from ...record.run_store import LATEST, going, list_runs, name_of, no_tasks_yet
from ...record.run_view import RunView
from ...record.samples import read_latest
from ...record.text import timeline as times
from ...record.text.event_messages import describe_outcome, headline
from ...record.text.format import describe_moment, describe_seconds, iso_times, json_text
from ...record.text.lines import clean
from ...record.text.run_table import table
from .. import completion
from ..options import Count, Span, exact_run_argument, find_to_look, home_option

SORT = "Order all runs by this value of their last reports or arguments, or by run, started, took, state, goodput."
COLUMNS = "List runs with a column for each of these values of their last reports and arguments: lr,val_loss."
CSV = "List runs as CSV, with the values of --columns, or all."
TIMELINE = "Show when each task reached each phase of its start, in seconds since the run, or its last attempt, began."
TRACE = "Write the run as a trace to this file, in Chrome's JSON format: for ui.perfetto.dev."
QUIET = "Print one line instead of the report."
TIMEOUT = "Stop waiting after this time, in seconds or as 10m, and exit with 124."


@click.command("ps")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=completion.runs)
@home_option
@click.option("-a", "--all", "everything", is_flag=True, help="List all runs, the newest last.")
@click.option("-n", "--newest", "most", type=Count(1), metavar="N", help="List only the newest N runs, or with --sort the best N.")
@click.option("--sort", metavar="NAME", help=SORT, shell_complete=completion.reported)
@click.option("--columns", "chosen", metavar="NAME,...", help=COLUMNS, shell_complete=completion.reported)
@click.option("--csv", "as_csv", is_flag=True, help=CSV)
@click.option("--timeline", is_flag=True, help=TIMELINE)
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", shell_complete=completion.files, help=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps_command(
    names: tuple[str, ...],
    home: Path,
    everything: bool,
    most: int | None,
    sort: str | None,
    chosen: str | None,
    as_csv: bool,
    timeline: bool,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Show the tasks of RUN (default: the latest run), or list several runs, or all.

    \b
    Examples:
      orch ps                the tasks of the latest run
      orch ps --timeline     how long each phase of the start took
      orch ps --trace run.json    the whole run, for ui.perfetto.dev
      orch ps --all -n 10    the newest ten runs: arguments, results, reports
      orch ps --all --sort val_loss -n 3    the three with the least loss
      orch ps --all --sort goodput    the share of time that trained
      orch ps --all lr-      the runs whose names begin with lr-
      orch ps --columns lr,val_loss    a table of a sweep; --csv
      orch ps lr-1 lr-2      both

    UP and TOOK are the times of a task's process. The time of a run also includes the import of TensorFlow before its tasks, and the end
    after them.
    """
    if everything or most or sort or chosen is not None or as_csv or len(names) > 1:
        if as_csv and as_json:
            raise UsageError("--csv and --json are two forms of one list; give one of them")
        columns = list(filter(None, map(str.strip, (chosen or "").split(","))))
        if chosen is not None and not columns:
            raise UsageError("--columns names no value; write names with commas between, such as --columns lr,val_loss")
        _print_runs(home, names, most, sort, columns, "csv" if as_csv else "json" if as_json else "")
        return 0
    run = names[0] if names else None
    if run is None and not list_runs(home):
        click.echo("null" if as_json else f"there is no run in {home}")
        return 0
    found = find_to_look(home, run)
    if trace is not None:
        _write_trace(found, trace, as_json=as_json)
        return 0
    _print_run(found, timeline=timeline, as_json=as_json)
    if not as_json and run is None and (others := [name for name in going(home) if name != found.run_id]):
        click.echo(f"also running: {few(others)}")
    return 0


def _print_run(found: RunDir, *, timeline: bool, as_json: bool) -> None:
    """Print the state of a run and its tasks; `timeline`: the phases of their start."""
    cluster = read_cluster(found)
    measured = times.measure(found.read_events(milestones=True), cluster) if timeline or as_json else {}
    if as_json:
        # A task is called `task` wherever orch writes JSON.
        tasks = [{"task" if key == "name" else key: value for key, value in asdict(task).items()} for task in cluster.tasks.values()]
        absent = stragglers.describe_absent(read_latest(found.path), stragglers.training(cluster)) if found.is_alive() else ""
        print_json({**asdict(summarise(found, time.time())), "tasks": tasks, "absent": absent or None, "timeline": measured})
        return
    has_report = cluster.verdict is not None and cluster.verdict.outcome not in (Outcome.SUCCEEDED, Outcome.CANCELLED)
    has_report = has_report and found.read_verdict() is not None  # a controller that died has written none
    click.echo(line_of(found, cluster) + (f"; orch wait {found.run_id} shows the report" if has_report else ""))
    if has_report and cluster.verdict is not None and cluster.verdict.cause is not None and cluster.verdict.cause.remedy:
        click.echo(f"fix: {clean(cluster.verdict.cause.remedy)}")
    if timeline:
        click.echo(times.table(measured))
        click.echo(times.slowest(measured))
    elif cluster.tasks:
        click.echo(table(cluster, time.time(), _width(), read_latest(found.path) if found.is_alive() else None))


def _write_trace(run: RunDir, path: Path, *, as_json: bool) -> None:
    from ...views import story_gather, trace_file  # not for a help text
    from ...views.run_bundle import write_private

    made = trace_file.trace(story_gather.gather(run))
    try:
        write_private(path, json_text(made, separators=(",", ":")).encode("ascii"))
    except OSError as error:
        raise OrchError(f"{path} cannot be written: {error.strerror or error}") from None
    click.echo(json_text({"path": str(path.absolute())}) if as_json else str(path))


def _print_runs(
    home: Path, names: tuple[str, ...], most: int | None, sort: str | None, columns: Sequence[str] = (), form: str = ""
) -> None:
    """The runs whose names begin so, as a table, ``json`` or ``csv``. ``latest``: the latest run, unless a name begins so."""
    found = find_all(home)
    begins = tuple(find(home, LATEST).run_id if name == LATEST and not _begin(found, (name,)) and found else name for name in names)
    if missing := [name for name in begins if not _begin(found, (name,))]:
        raise UsageError(f"no run in {home} has a name that begins with {missing[0]!r}")
    every = _begin(found, begins or ("",))
    cut = slice(-most if most else None, None)
    runs = [summarise(one, time.time()) for one in (every if sort else every[cut])]
    runs, together = _with_goodput(runs) if sort == run_list.GOODPUT else (runs, [])
    runs = run_list.ordered(runs, sort)[cut] if sort else runs
    if sort and sort != run_list.GOODPUT and not any(run_list.has_number(one, sort) for one in runs) and not run_list.column(runs, sort):
        _tell_unknown("reported a number", sort, [*run_list.names(runs)[:9], *run_list.COLUMNS])
    known = sorted({each for one in runs for each in one.values or ()})
    for name in columns if runs else ():
        if name not in known:
            _tell_unknown("a value", name, known)
    if form == "json":
        print_json([asdict(one) for one in runs])
    elif form == "csv" or (columns and runs):
        click.echo(run_list.sweep(runs, columns, _width(), as_csv=form == "csv").rstrip("\n"))
    else:
        ids = [one.run_id for one in found]
        click.echo(run_list.table(runs, time.time(), _width(), ids, first=sort or "") if runs else f"there is no run in {home}")
    if not form and together:
        click.echo("\n".join(together))


def _tell_unknown(what: str, name: str, known: Sequence[str]) -> None:
    hint = f"did you mean {near}?" if (near := nearest(name, known)) else f"there are {few(known, 13)}"
    click.echo(f"orch: note: no run has {what} {name}" + (f"; {hint}" if known else ""), err=True)


def _with_goodput(runs: Sequence[RunSummary]) -> tuple[list[RunSummary], list[str]]:
    """The runs with their goodput, and a line for all runs of each name that has several."""
    from ...views import goodput, story_gather  # not for a help text

    found: dict[str, goodput.Goodput] = {}
    names: dict[str, list[goodput.Goodput]] = {}
    for run in runs:
        with contextlib.suppress(OrchError):  # the table says what cannot be read
            if (own := goodput.measure(story_gather.gather(RunDir(Path(run.directory))))).seconds:
                found[run.run] = own
                names.setdefault(name_of(run.run), []).append(own)
    totals = {name: goodput.total(each) for name, each in names.items()}

    def measured(run: RunSummary) -> RunSummary:
        if (own := found.get(run.run)) is None:
            return run
        values = run.values if own.share is None else {**(run.values or {}), run_list.GOODPUT: own.share}
        return replace(run, goodput=goodput.to_json(own, totals[name_of(run.run)]), values=values)

    several = {name: len(each) for name, each in names.items() if len(each) > 1}
    return [*map(measured, runs)], [
        f"goodput of {name}, {count} runs: {totals[name].text}; {totals[name].rest}" for name, count in several.items()
    ]


def _begin(runs: Sequence[RunDir], begins: tuple[str, ...]) -> list[RunDir]:
    """Return those whose ids begin with one of these texts."""
    return [run for run in runs if run.run_id.startswith(begins)]


@click.command("wait")
@exact_run_argument
@click.option("--timeout", type=Span(), metavar="TIME", help=TIMEOUT)
@click.option("-q", "--quiet", is_flag=True, help=QUIET)
@click.option("--json", "as_json", is_flag=True, help="Print the result of the run as JSON.")
def wait_command(run: RunDir, timeout: float | None, quiet: bool, as_json: bool) -> int:
    """Wait until RUN (default: the latest run) ends, print the report of its end, and exit with its exit code.

    \b
    Examples:
      orch wait
      orch wait --timeout 1h     exit code 124 if the run has not ended by then
    """
    if not wait_for(run, timeout):
        click.echo(f"orch: {run.run_id} is still running after {timeout:g} s", err=True)
        return DEADLINE
    from ...record.report import report_again  # not for a help text

    lines = report_again(run)
    verdict = run.read_verdict()
    if as_json:
        print_json(run.read_result())
    else:
        click.echo(line_of(run) if quiet else "\n".join(f"orch: {line}" for line in lines), err=True)
    return verdict.exit_code if verdict else BROKEN


@click.command("restart")
@exact_run_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restart_command(run: RunDir, as_json: bool) -> int:
    """Stop the tasks of RUN (default: the latest run) and start them again, as its next attempt.

    \b
    Example:
      orch restart

    This restart does not count for --max-restarts. If several runs are running, give RUN.
    """
    ctx = click.get_current_context()
    refuse_unclear(ctx.params["home"], ctx.params["run"], run, "restart")
    attempt = ask_restart(run)
    if as_json:
        print_json({"run": run.run_id, "after_attempt": attempt})
        return 0
    click.echo(f"{run.run_id}: asked to start again after attempt {attempt}", err=True)
    return 0


def refuse_unclear(home: Path, name: str | None, run: RunDir, command: str) -> None:
    """Raise `UsageError` where a command that changes `run`, which the user has not named, may have been meant for another."""
    others = [] if name is not None else [one for one in going(home) if one != run.run_id]
    all_of_them = ", or end all: orch down --all" if command == "down" else ""
    if others and run.is_alive():
        both = [run.run_id, *reversed(others)]
        raise UsageError(f"{len(both)} runs go on: {few(both)}; name one: orch {command} {run.run_id}{all_of_them}")
    if others and run.read_verdict() is not None:
        ended = f"the latest run, {run.run_id}, has ended, and others go on: {few(others)}"
        raise UsageError(f"{ended}; name one: orch {command} {others[0]}{all_of_them if len(others) > 1 else ''}")


def wait_for(run: RunDir, timeout: float | None) -> bool:
    """Waits until the run is over. Returns False after `timeout` seconds. Without a limit the kernel wakes this process."""
    if timeout is None and not run.is_submitted:
        run.lock.wait()
        return True
    try:
        for _ in RunView(run).looks(math.inf if timeout is None else timeout):
            pass
    except TimeoutError:
        return False
    return True


def line_of(run: RunDir, cluster: Cluster | None = None, *, ends: bool = False) -> str:
    """`cluster`: its state, if the caller has read it. `ends`: the caller is `orch down`, to which a lost run needs no pointer."""
    if run.is_alive():
        cluster = cluster or read_cluster(run)
        if cluster.awaits_plan:
            again = f"attempt {cluster.attempt} " if cluster.tasks else "it "
            return f"{run.run_id}: running; {again}has {no_tasks_yet(run)}"
        phase = "" if cluster.word == Phase.RUNNING.value else f"; now {cluster.word}"
        if cluster.phase is Phase.STARTING and not phase and len(cluster.members) > 1:
            phase = "; its tasks have formed no cluster yet"
        since = f"since {describe_moment(cluster.started_at)}{_describe_attempt(cluster)}"
        unheard = f"; {run.heard().describe(now())}" if run.is_submitted and run.heard().trouble else ""
        done = "".join(f", {text}" for text in [describe_progress(cluster.progress(time.time()))] if text)
        return f"{run.run_id}: running {since}{done}{phase}{unheard}"
    if verdict := run.read_verdict():
        took = describe_seconds(verdict.ended_at - verdict.started_at)
        again = f" in attempt {verdict.attempt}" if verdict.past else ""
        why = f": {clean(' '.join(headline(verdict.cause).split()))}" if verdict.cause else ""
        warning = f"; warning: {verdict.warning}" if verdict.warning else ""
        return f"{run.run_id}: {describe_outcome(verdict.outcome)} after {took}{again}, exit code {verdict.exit_code}{why}{warning}"
    pointer = "" if ends else f"; orch down {run.run_id} ends what it may have left"
    return f"{run.run_id}: lost (its controller died without a result{pointer})"


def _width() -> int | None:
    """The columns of the terminal; None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _describe_attempt(cluster: Cluster) -> str:
    """``, attempt 3 (restart 1 of 1)``; empty in the first attempt. A restart that the user has requested does not count."""
    spent = sum(not attempt.free for attempt in restarts.relevant(cluster.past))
    count = f" (restart {spent} of {cluster.policy.restart.max})" if spent else ""
    return f", attempt {cluster.attempt}{count}" if cluster.past else ""


def print_json(data: Any) -> None:
    click.echo(json_text(iso_times(data)))
