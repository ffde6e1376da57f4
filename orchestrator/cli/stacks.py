"""``orch stacks``: where in their Python code the tasks of a run are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import click

from ..errors import UsageError
from ..model.formation import group_tasks
from ..record import rundir, stacks
from .options import home_option

LOOK_S = 0.1
GIVE_UP_S = 3.0
"""How long tasks that do not answer are waited for."""


@click.command("stacks")
@click.argument("run", required=False)
@home_option
@click.option("--full", is_flag=True, help="Print the stacks of all threads, not only where each task is.")
def stacks_command(run: str | None, home: str, full: bool) -> int:
    """Show where in their Python code the tasks of RUN (default: the latest) are, those at the same place together."""
    found = rundir.find(Path(os.path.abspath(home)), run)
    pid, cluster = found.controller_pid(), found.read_cluster()
    if pid is None or cluster is None:
        raise UsageError(f"{found.run_id} is not running")
    files = {name: found.task_dir(name, task.attempt) / "stacks.txt" for name, task in cluster.tasks.items() if not task.has_ended}
    before = {name: _size(path) for name, path in files.items()}
    os.kill(pid, signal.SIGUSR1)
    _wait_until_still(files, before)
    new = {name: _read_from(path, before[name]) for name, path in files.items()}
    silent = [name for name, text in new.items() if not text]
    for line in stacks.summarise({name: text for name, text in new.items() if text}):
        click.echo(line)
    if silent:
        click.echo(f"{group_tasks(silent)}: no answer (not Python, not started yet, or stopped)")
    for name, text in new.items() if full else ():
        click.echo(f"\n{name}\n{text}")
    return 0


def _wait_until_still(files: Mapping[str, Path], before: Mapping[str, int]) -> None:
    """Until every file has grown and none grows any more, or `GIVE_UP_S` has passed."""
    deadline = time.monotonic() + GIVE_UP_S
    last: dict[str, int] = {}
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        sizes = {name: _size(path) for name, path in files.items()}
        if sizes == last and all(size > before[name] for name, size in sizes.items()):
            return
        last = sizes


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, offset: int) -> str:
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
