"""``orch checkpoints``: the saves of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...errors import UsageError
from ...record.text.format import iso_times, json_text
from .. import completion
from ..options import find_to_look, home_option

VERIFY = "Read all tensors, and compare their checksums with those of the manifests. Exit code 1 if a checkpoint is damaged."


@click.command("checkpoints")
@click.argument("run", required=False, shell_complete=completion.runs)
@home_option
@click.option("--verify", is_flag=True, help=VERIFY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoints_command(run: str | None, home: Path, verify: bool, as_json: bool) -> int:
    """Show the checkpoints of RUN (default: the latest run): step, epoch, age, size, and which one a restart would begin with.

    \b
    Examples:
      orch checkpoints
      orch checkpoints --verify RUN     also read all tensors
      orch checkpoints /data/saves/RUN  a directory of checkpoints

    A script saves checkpoints with worker.checkpoints, worker.KerasCheckpoint or --checkpoint. A new run continues with the newest one:
    orch up SCRIPT --resume RUN.
    """
    from ...record import saves_of_run
    from ...views import saves_report  # not for a help text

    base = run if run and Path(run).is_dir() else saves_of_run.directory(find_to_look(home, run))
    if saves_of_run.is_remote(base):
        raise UsageError(f"the checkpoints are in {base}, which this command does not read: copy the directory here, and name the copy")
    found = saves_report.read(base, verify=verify)
    if as_json:
        click.echo(json_text(iso_times([asdict(series) for series in found])))
    else:
        click.echo("\n".join(saves_report.to_text(base, found, verified=verify)))
    return int(verify and any(row.problem not in ("", saves_report.UNFINISHED) for series in found for row in series.saves))
