"""``orch timeline``: the phases of the start, and a run as a trace for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...errors import OrchError
from ...record.storage.run_directory import RunDir
from ..completion import files
from ..options import run_argument

TRACE = "Write the run as a trace to this file, in Chrome's JSON format: for ui.perfetto.dev."


@click.command("timeline")
@run_argument
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", shell_complete=files, help=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Print the seconds of each phase as a JSON object, or the path of the trace.")
def timeline_command(run: RunDir, trace: Path | None, as_json: bool) -> int:
    """Show how long each phase of the start of RUN (default: the latest run) took, or write the whole run as a trace.

    \b
    Examples:
      orch timeline                     the table of orch ps --timeline
      orch timeline --trace run.json    a trace, to open at ui.perfetto.dev

    The trace has the attempts, and the phases, steps, CPU and memory of each task. A process is a host, and a thread is a task. The file
    stays on this machine: ui.perfetto.dev reads it in the browser.
    """
    if trace is None:
        from ...record.storage.run_progress import read_cluster
        from ...record.text import timeline

        measured = timeline.measure(run.read_events(milestones=True), read_cluster(run))
        click.echo(json.dumps(measured) if as_json else f"{timeline.table(measured)}\n{timeline.slowest(measured)}")
        return 0
    from ...insight.seeing import story_gather, trace_file  # not for a help text
    from ...insight.seeing.run_bundle import write_private

    made = trace_file.trace(story_gather.gather(run))
    try:
        write_private(trace, json.dumps(made, separators=(",", ":")).encode("ascii"))
    except OSError as error:
        raise OrchError(f"{trace} cannot be written: {error.strerror or error}") from None
    click.echo(json.dumps({"path": str(trace.absolute())}) if as_json else str(trace))
    return 0
