"""``orch down``: ends runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from worker.values.words import few

from ...backends import Cleanup, RunFacts, load
from ...control.engine_jobs import clear, find, find_all
from ...control.requests import ask_stop
from ...errors import OrchError, UsageError
from ...record.engine_files import read_submission
from ...record.run_directory import RunDir
from ...record.run_list import summarise
from .. import completion
from ..options import home_option
from .run_commands import line_of, print_json, refuse_unclear, wait_for

STUCK_S = 15.0
"""Seconds until `orch down` prints what ends a run that has not ended."""

ALL = "End all running runs of this directory. On a terminal orch asks first."
YES = "With --all: do not ask."


@click.command("down")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=completion.runs)
@home_option
@click.option("-a", "--all", "everything", is_flag=True, help=ALL)
@click.option("-y", "--yes", "agreed", is_flag=True, help=YES)
@click.option("--now", "at_once", is_flag=True, help="Kill the tasks at once, without the grace period.")
@click.option("--save", is_flag=True, help="Save a checkpoint first, if the training can.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object, or with --all or several RUNs a list.")
def down_command(names: Sequence[str], home: Path, everything: bool, agreed: bool, at_once: bool, save: bool, as_json: bool) -> int:
    """End RUN (default: the latest run), or several runs. Returns when all their processes have ended.

    \b
    Examples:
      orch down
      orch down --now     without the grace period
      orch down --save    after a save, for orch up SCRIPT --resume RUN
      orch down --all     all running runs

    The tasks get SIGTERM, and SIGKILL after the grace period of the run (timeouts.grace_s). If several runs are running, orch ends none of
    them without RUN or --all.
    """
    if save and at_once:
        raise UsageError("--save and --now: to save takes time; say one of them")
    if everything and names:
        raise UsageError("--all ends all runs that go on: leave RUN out")
    if everything:
        runs = [run for run in find_all(home) if run.is_alive()]
        if not runs and not as_json:
            click.echo(f"no run goes on in {home}")
        if not agreed and not _agrees([run.run_id for run in runs]):
            click.echo("no run was ended")
            return 0
    else:
        runs = [*{run.run_id: run for run in (find(home, name) for name in names or (None,))}.values()]
        refuse_unclear(home, names[0] if names else None, runs[0], "down")
    ended, problems = _end(runs, at_once=at_once, save=save, as_json=as_json)
    if as_json:
        print_json(ended if everything or len(names) > 1 else ended[0] if ended else {})
    if problems:
        raise OrchError("\n".join(problems))
    return 0


def _agrees(runs: Sequence[str]) -> bool:
    """True if the user, who is asked if there is a terminal, wants the end of these runs."""
    if not runs or not (sys.stdin is not None and sys.stdin.isatty()):
        return True
    return click.confirm(f"End {few(runs)}?", err=True)


def _end(runs: Sequence[RunDir], *, at_once: bool, save: bool, as_json: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Ask all of the runs to end, and wait for each. Returns the JSON of each that has ended, and what went wrong with the others."""
    asked, ended, problems = list[tuple[RunDir, bool]](), list[dict[str, Any]](), list[str]()
    for run in runs:
        try:
            asked.append((run, ask_stop(run, "stopped by orch down", now=at_once, save=save)))
        except OrchError as error:  # such as a controller on another machine
            if len(runs) == 1:
                raise
            problems.append(str(error))
    for run, was_running in asked:
        if was_running and not wait_for(run, STUCK_S):
            how = f"orch down --now ends it without the grace period, and {_last_means(run)} in any case"
            click.echo(f"orch: {run.run_id} has not ended after {STUCK_S:g} s: {how}. Still waiting", err=True)
            wait_for(run, None)
        cleanup = Cleanup()
        if run.is_submitted:
            cleanup = Cleanup(hint=clear(run))
        elif run.read_verdict() is None:
            cleanup = _clear(run)
        if as_json:
            more = {"was_running": was_running, "cleared": cleanup.killed, "unseen": list(cleanup.unseen)}
            ended.append({**asdict(summarise(run, time.time())), **more})
            continue
        click.echo(line_of(run, ends=True) + ("" if was_running else "; it was not running"))
        verdict = run.read_verdict() if save and was_running else None
        if verdict is not None and verdict.saved is None:
            why = "only a training with --checkpoint, or with worker.checkpoints, saves itself, between two steps"
            if run.read_spec().checkpoints.fit:
                why = "no step was done within the grace period (timeouts.grace_s), or no fit has begun"
            click.echo(f"nothing was saved: {why}")
        if cleanup.killed:
            click.echo(f"killed {cleanup.killed} processes that its dead controller had left")
        if cleanup.hint:
            click.echo(cleanup.hint)
    return ended, problems


def _last_means(run: RunDir) -> str:
    """Return what ends a run whose controller does not act."""
    if (submitted := read_submission(run.path)) is not None:
        return f"the end of {submitted.words} by its engine"
    return f"kill -9 of its controller{run.lock.describe_controller()}"


def _clear(run: RunDir) -> Cleanup:
    """Ends what a dead controller may have left, if it was this directory's: other processes may have the same run in their environment."""
    unseen = "processes that it may have left were not looked for"
    if not run.is_ours:  # root: the owner could have given the run another run's name, and its spec any program
        return Cleanup(hint=f"the run belongs to another user: {unseen}")
    if not run.lock.is_own():  # the run itself may live on, where it was copied from
        return Cleanup(hint=f"{run.path} is not the directory in which the run began (a copy?): {unseen}")
    planned = run.read_plan()
    spec = run.read_spec() if planned is None else planned.spec
    return load(spec).cancel(RunFacts(spec, run.run_id, str(run.path)))
