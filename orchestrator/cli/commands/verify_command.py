"""``orch verify``: whether several workers train as one process does."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import click

from ...checks.training_steps import STEPS
from ...record.text.format import json_text
from ..options import Count, new_home_option, spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec


@click.command("verify", cls=ScriptCommand)
@spec_options
@new_home_option
@click.option("--steps", type=Count(1, 1000), metavar="N", default=STEPS, show_default=True, help="Compare so many steps.")
@click.option("--limit", type=Count(1), metavar="S", default=300, show_default=True, help="The most seconds that both runs may take.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify_command(ctx: click.Context, /, home: Path, steps: int, limit: int, as_json: bool, **_: Any) -> int:
    """Run the first steps of SCRIPT as one process and as several workers, and say whether they are the same training.

    \b
    Examples:
      orch verify train.py -n 2
      orch verify train.py -n 4 --steps 20 -- --batch 64
      orch verify train.py --strategy mirrored --cpus 2

    Both get the same random numbers. Compared are the rows of each step, the losses with their terms, the gradients as the
    optimizer applies them, the variables, and what fit shows. The program ends after these steps, before it saves.

    The exit code is 0 for the same training and 1 for another one. If the program fails, it is that of the program, and 2 for 1.
    """
    from ...checks.same_training import sentences, to_json
    from ...errors import TERMINATED, USAGE
    from ...verify import RunFailed, verify

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # the runs and what they share end with this command
    spec = read_spec(ctx)[0]
    try:
        found = verify(spec, home / "verify", steps=steps, limit_s=limit)
    except RunFailed as error:
        error.exit_code = USAGE if error.exit_code == 1 else error.exit_code
        raise
    click.echo(json_text(to_json(found)) if as_json else "\n".join(sentences(found)))
    return 0 if found.is_same else 1
