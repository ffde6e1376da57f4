"""``orch report``: a run as one page, or as an archive for a bug report."""

from __future__ import annotations

from pathlib import Path

import click

from worker.values.words import count_of

from ...errors import OrchError
from ...record.run_directory import RunDir
from ...record.text.format import json_text
from ..completion import files
from ..options import run_argument

OUTPUT = "Write to this file. [default: RUN.html here, or RUN.zip with --bundle]"
BUNDLE = "Write an archive with the page, the events, the plan and the logs, for a bug report."


@click.command("report")
@run_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", shell_complete=files, help=OUTPUT)
@click.option("--bundle", is_flag=True, help=BUNDLE)
@click.option("--json", "as_json", is_flag=True, help="Print the path of the file as a JSON object.")
def report_command(run: RunDir, output: Path | None, bundle: bool, as_json: bool) -> int:
    """Write RUN (default: the latest run) as one HTML page: its end, attempts, tasks, use, input and start.

    \b
    Examples:
      orch report                      one file for any browser
      orch report -o page.html RUN
      orch report --bundle             with the logs, to attach to an issue

    The page and the archive leave out values whose names mark them as secrets (API_KEY=...). Look at an archive before you share it:
    it holds the logs, without the middle of long ones. Only you can read these files.
    """
    from ...views import report_page  # not for a help text

    text = report_page.page(run)
    path = output or Path(f"{run.run_id}.{'zip' if bundle else 'html'}")
    from ...views.run_bundle import write_bundle, write_private

    hidden = 0
    try:
        if bundle:
            hidden = write_bundle(run, path, text)
        else:
            write_private(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OrchError(f"{path} cannot be written: {error.strerror or error}") from None
    if hidden:
        what = f"{count_of(hidden, 'value')} left out that may be passwords or keys"
        click.echo(f"orch: {what}; look at the archive before you give it away", err=True)
    click.echo(json_text({"path": str(path.absolute()), "left_out": hidden}) if as_json else str(path))
    return 0
