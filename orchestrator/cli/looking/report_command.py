"""``orch report``: a run as one page, or as an archive for a bug report."""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import OrchError
from ...record.storage.run_directory import RunDir
from ..completion import files
from ..options import run_argument

OUTPUT = "Write to this file. Default: RUN.html here, or RUN.zip with --bundle."
BUNDLE = "Write an archive with the page, the events, the plan and the logs, for a bug report."


@click.command("report")
@run_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", shell_complete=files, help=OUTPUT)
@click.option("--bundle", is_flag=True, help=BUNDLE)
def report_command(run: RunDir, output: Path | None, bundle: bool) -> int:
    """Write RUN (default: the latest run) as one HTML page: its end, attempts, tasks, use, input and start.

    \b
    Examples:
      orch report                      one file, which any browser shows without a network
      orch report -o page.html RUN
      orch report --bundle             with the logs, to attach to an issue

    The page leaves passwords and keys out, as far as a name beside them tells what they are. Look at an archive before you give it away:
    it holds the logs as they are.
    """
    from ...insight.seeing import report_page  # not for a help text

    text = report_page.page(run)
    path = output or Path(f"{run.run_id}.{'zip' if bundle else 'html'}")
    try:
        if bundle:
            from ...insight.seeing.run_bundle import write_bundle

            write_bundle(run, path, text)
        else:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OrchError(f"{path} cannot be written: {error.strerror or error}") from None
    click.echo(str(path))
    return 0
