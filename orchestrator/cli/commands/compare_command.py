"""``orch compare``: where two runs differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ...record.text.format import json_text
from .. import completion
from ..options import find_to_look, home_option


@click.command("compare")
@click.argument("one", metavar="RUN", shell_complete=completion.runs)
@click.argument("other", metavar="RUN", shell_complete=completion.runs)
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare_command(one: str, other: str, home: Path, as_json: bool) -> int:
    """Show where two runs differ: at the start, in their numbers, in the end.

    \b
    Examples:
      orch compare train-1 train-2
      orch compare --json train-1 train-2

    orch compares the settings, the arguments, the code by its hash, the versions, the hosts, what the chief has reported of each step,
    and the checkpoints. Reported numbers that differ by less than one part in 10,000 count as the same.

    The exit code is 0 if the numbers are the same, and 1 if they differ.
    """
    from ...views import run_comparison  # not for a help text

    found = run_comparison.compare(find_to_look(home, one), find_to_look(home, other))
    click.echo(json_text(dataclasses.asdict(found)) if as_json else "\n".join(run_comparison.to_text(found)))
    return int(found.parts)
