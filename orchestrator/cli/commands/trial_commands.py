"""``orch verify``: whether several workers train as one process does. ``orch scale``: why more are not as many times faster."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import click

from ...checks.training_steps import STEPS
from ...errors import TERMINATED, UsageError
from ...record.text.format import json_text, wrap
from ..options import Count, Span, new_home_option, spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec


@click.command("verify", cls=ScriptCommand)
@spec_options
@new_home_option
@click.option("--steps", type=Count(1, 1000), metavar="N", default=STEPS, show_default=True, help="The number of steps to compare.")
@click.option("--limit", type=Span(1), metavar="TIME", default=300.0, help="The most that both runs may take. [default: 5m]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify_command(ctx: click.Context, /, home: Path, steps: int, limit: float, as_json: bool, **_: Any) -> int:
    """Run the first steps of SCRIPT as one process and as several workers, and say whether they are the same training.

    \b
    Examples:
      orch verify train.py -n 2
      orch verify train.py -n 4 --steps 20 -- --batch 64
      orch verify train.py --strategy mirrored --cpus 2

    Both get the same random numbers. orch compares the rows of each step, the losses with their terms, the gradients as the optimizer
    applies them, the variables, and the output of fit. The program ends after these steps; its saves do nothing.

    The exit code is 0 if the training is the same, 1 if it differs, and 2 if nothing could be compared. If SCRIPT fails, the exit
    code is its own (2 for its 1). orch verify refuses parameter servers and other hosts.
    """
    from ...checks.same_training import sentences, to_json
    from ...errors import USAGE
    from ...verify import RunFailed, verify

    _end_with_its_runs()
    spec = read_spec(ctx)[0]
    try:
        found = verify(spec, home / "verify", steps=steps, limit_s=limit)
    except RunFailed as error:
        error.exit_code = USAGE if error.exit_code == 1 else error.exit_code
        raise
    click.echo(json_text(to_json(found)) if as_json else "\n".join(sentences(found)))
    return 0 if found.is_same else 1


@click.command("scale", cls=ScriptCommand)
@spec_options
@new_home_option
@click.option("--seconds", type=Span(2, 3600), metavar="TIME", default=30.0, help="How long to measure each size. [default: 30]")
@click.option("--limit", type=Span(10), metavar="TIME", default=600.0, help="The most that one size may take. [default: 10m]")
@click.option("--batch-argument", metavar="NAME", default="", help="The script's argument for the batch: try the other way, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def scale_command(ctx: click.Context, /, home: Path, seconds: float, limit: float, batch_argument: str, as_json: bool, **_: Any) -> None:
    """Run SCRIPT for a while with each of several numbers of workers, and say why more workers are not faster.

    \b
    Examples:
      orch scale train.py -n 1,2,4
      orch scale train.py -n 1,2 -H a,b --seconds 60 -- --batch 64
      orch scale train.py -n 1,2,4 --batch-argument batch

    orch starts each number of workers, lets it warm up, measures its steps, and ends it. The script saves nothing meanwhile: orch leaves
    out callbacks that write files, and calls that save a model do nothing.
    """
    from ...scale import scale

    _end_with_its_runs()
    sizes = _sizes(ctx.params["spec_workers"])
    ctx.params["spec_workers"] = str(sizes[-1])
    spec = read_spec(ctx)[0]

    def say(line: str) -> None:
        click.echo(f"orch: {line}", err=True)

    found = scale(spec, home / "scale", sizes, seconds=seconds, limit_s=limit, batch_argument=batch_argument, say=say)
    width = shutil.get_terminal_size((100, 24)).columns
    lines = [part for line in found["text"] for part in (wrap(line, width, "", "  ") if ": " in line else [line])]
    click.echo(json_text(found) if as_json else "\n".join(lines))


def _sizes(text: str | None) -> list[int]:
    """The numbers of ``-n 1,2,4``, in their order."""
    words = (text or "").split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        wrong = f"-n {text}: these are not numbers of workers" if text else "-n is missing: the numbers of workers to measure"
        raise UsageError(wrong, fix="orch scale train.py -n 1,2,4")
    return sorted(set(map(int, words)))


def _end_with_its_runs() -> None:
    """Let SIGTERM end the runs, and what they share, with this command."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
