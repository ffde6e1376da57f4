"""``orch prune``: removes the directories of old runs."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import click

from worker.machine.file_system import mounts_in
from worker.values.words import bytes_of, few

from ...control.engine_jobs import find, find_all
from ...errors import OrchError, UsageError
from ...model.policy.submission import REQUEUED
from ...record.run_directory import RunDir
from ...record.run_list import state
from ...record.run_store import SeveralRunsError, begun_at, is_made_by_orch
from ...record.text.format import json_text
from .. import WORD, completion
from ..options import Count, Span, home_option

KEEP = "Keep the newest N runs. [default: 20, or none with --older]"
OLDER = "Remove only runs that began longer ago than this: 14d, 36h."


@click.command("prune")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=completion.runs)
@home_option
@click.option("--keep", type=Count(0), metavar="N", help=KEEP)
@click.option("--older", type=Span(has_unit=True), metavar="TIME", help=OLDER)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def prune_command(
    ctx: click.Context, /, names: tuple[str, ...], home: Path, keep: int | None, older: float | None, dry_run: bool, as_json: bool
) -> int:
    """Remove the directories of old runs, or of each RUN, with their logs and checkpoints. A running run is never removed.

    \b
    Examples:
      orch prune                          show all but the newest 20, remove none
      orch prune --keep 20                remove them
      orch prune --older 14d              all runs older than two weeks
      orch prune --keep 20 --older 14d    of those, not the newest 20
      orch prune --dry-run                show them, and remove nothing
      orch prune RUN                      this run alone
      orch prune 'lr-*'                   the runs whose ids begin with lr-

    Without RUN, the latest run is never removed either.
    """
    if names and (keep is not None or older is not None):
        raise UsageError("RUN names the runs to remove: leave --keep and --older out")
    runs = [run for run in find_all(home) if is_made_by_orch(run)]
    chosen = _named(home, names) if names else _old(home, runs, keep, older)
    # A bare command may mean less than the checkpoints of a month, and so may any form of `orch clean`.
    only_shown = (WORD in ctx.meta or keep is older is None) and not names and not dry_run
    dry_run = dry_run or only_shown
    sizes = {run.run_id: _size(run.path) for run in chosen}
    failed = {} if dry_run else {run.run_id: why for run in chosen if (why := _remove(run.path))}
    removed = [run.run_id for run in chosen if run.run_id not in failed]
    freed = sum(sizes[name] for name in removed)
    if as_json:
        click.echo(json_text({"removed": removed, "bytes": freed, "failed": [*failed], "dry_run": dry_run}))
    else:
        for name in removed:
            click.echo(f"{'would remove' if dry_run else 'removed'} {name} ({bytes_of(sizes[name])})")
        left = len(runs) - (0 if dry_run else len(removed))
        click.echo(f"{len(removed)} of {len(runs)} runs, {bytes_of(freed)}; {left} left in {home}")
        if only_shown and removed:
            same = "--keep 20 removes them" if keep is older is None else "removes them with the same options"
            click.echo(f"nothing was removed: orch prune {same}, and orch {ctx.meta.get(WORD, 'prune')} RUN removes a run")
    if failed:
        raise OrchError("\n".join(f"cannot remove {name}: {why}" for name, why in failed.items()))
    return 0


def _named(home: Path, names: Sequence[str]) -> list[RunDir]:
    """The runs with these names, or whose ids match a pattern of the shell, each once. Raises `UsageError` if one of them goes on, or is no
    run."""
    chosen = {run.run_id: run for name in names for run in _matching(home, name)}
    if going := [name for name, run in chosen.items() if not _is_over(run)]:
        raise UsageError(f"{few(going)}: not over, so no run is removed; orch down {going[0]} ends the run")
    if others := [name for name, run in chosen.items() if not is_made_by_orch(run)]:
        raise UsageError(f"{few(others)}: no directory that orch has made, so nothing is removed")
    return list(chosen.values())


def _matching(home: Path, name: str) -> list[RunDir]:
    """The run with this name, or all whose ids match it as a pattern. Raises `UsageError` if there is none, or if several have the name."""
    if not {*"*?["}.isdisjoint(name):
        if not (found := [run for run in find_all(home) if fnmatch.fnmatchcase(run.run_id, name) and is_made_by_orch(run)]):
            raise UsageError(f"no run in {home} has an id like {name!r}")
        return found
    try:
        return [find(home, name)]
    except SeveralRunsError as error:
        several = [run.run_id for run in error.runs]
        is_every = several == [run.run_id for run in find_all(home) if run.run_id.startswith(name)]  # lr-1 is not lr-10
        raise UsageError(
            f"{error}; to remove all of them: orch prune {shlex.quote(f'{name}*') if is_every else shlex.join(several)}"
        ) from None


def _old(home: Path, runs: Sequence[RunDir], keep: int | None, older: float | None) -> list[RunDir]:
    """The runs that are over and that neither `keep` nor `older` keeps; never the latest."""
    kept = (20 if older is None else 0) if keep is None else keep
    limit = time.time() - (older or 0.0)
    candidates = [run for run in runs[: max(0, len(runs) - kept)] if older is None or (begun_at(run.path) or 0) / 1e9 < limit]
    latest = (home / "latest").resolve()
    return [run for run in candidates if run.path.resolve() != latest and _is_over(run)]


def _is_over(run: RunDir) -> bool:
    try:
        return state(run) != "running" and not _may_come_back(run)
    except OrchError:
        return False


def _may_come_back(run: RunDir) -> bool:
    """True if the engine may start the job of a run again, and cannot be asked here."""
    verdict = run.read_verdict() if run.is_submitted else None
    if verdict is None or verdict.exit_code not in REQUEUED:
        return False
    heard = run.heard()
    return bool(heard.trouble or (heard.word.state == "unknown" and heard.word.words))


def _size(path: Path) -> int:
    """The bytes of the files of a directory, of the links themselves and not of what they name; without what lies too deep for a path."""
    size = 0
    with contextlib.suppress(OSError, RecursionError):
        for found in () if path.is_symlink() else path.rglob("*"):
            size += found.lstat().st_size if found.is_file() and not found.is_symlink() else 0
    return size


def _remove(path: Path) -> str:
    """Remove a directory; of a link in its place, the link alone. Returns why it cannot be removed."""
    try:
        if path.is_symlink():
            path.unlink()
        elif mounted := mounts_in(str(path)):
            return f"{few(mounted)} is another directory, which is mounted there: umount it first"
        else:
            shutil.rmtree(path)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}" if os.path.lexists(path) else ""
    except RecursionError:
        return f"its directories lie too deep for Python: rm -rf {shlex.quote(str(path))}"
    return ""
