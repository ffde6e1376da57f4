"""``orch top``: a live view of a run, or what it would show now. ``orch metrics``: the same for Prometheus."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from ...record.run_directory import RunDir
from ...record.text.format import json_text
from ..options import run_argument

if TYPE_CHECKING:
    from ...views.watcher import Watcher

MISSING = "orch top shows the state once: for the live view, pip install textual"
UNCUT = 100_000


@click.command("top")
@run_argument
@click.option("--once", is_flag=True, help="Print the state once, as into a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print the state once, as a JSON object.")
def top_command(run: RunDir, once: bool, as_json: bool) -> int:
    """Show the tasks of RUN (default: the latest run) live: what each does and uses, where the time of its steps goes, who waits for whom.

    \b
    Examples:
      orch top              q quits; ? shows the keys
      orch top --once       the same as plain text, once
      orch top --json       for programs

    The view reads the directory of the run: it works from another shell, and after the end of the run.
    """
    from ...views import top_state  # not for a help text
    from ...views.watcher import Watcher

    watcher = Watcher(run)
    if as_json:
        click.echo(json_text(top_state.as_json(watcher.read(top_state.View()))))
        return 0
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if once or not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        return _print(watcher)
    if importlib.util.find_spec("textual") is None:
        click.echo(MISSING, err=True)
        return _print(watcher)
    from .top_screen import show

    return show(watcher)


def _print(watcher: Watcher) -> int:
    from ...views.frame import frame
    from ...views.top_state import View

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNCUT
    for line in frame(watcher.read(View()), columns):
        click.echo(line)
    return 0


@click.command("metrics")
@run_argument
def metrics_command(run: RunDir) -> int:
    """Print the state of RUN (default: the latest run) as metrics, in the text format of Prometheus.

    \b
    Example:
      orch metrics

    For a collector: orch up --metrics-dir DIR keeps them in a file while the run lasts. orch opens no port.
    """
    from ...record import run_metrics  # not for a help text

    click.echo(run_metrics.of_run(run), nl=False)
    return 0
