"""``orch up``: start a cluster, attached or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import ScriptCommand, home_option, spec_options
from .settings import read_spec
from .views import view_options


@click.command("up", cls=ScriptCommand)
@spec_options
@home_option
@click.option("-d", "--detach", "detached", is_flag=True, envvar="ORCH_DETACH", help="Return as soon as the tasks are started.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and each TF_CONFIG; start nothing.")
@view_options
@click.option("--json", "as_json", is_flag=True, envvar="ORCH_JSON", help="Print events as JSON lines instead of logs.")
@click.pass_context
def up_command(ctx: click.Context, /, home: Path, detached: bool, dry_run: bool, as_json: bool, **_: Any) -> int:
    """Start a cluster that runs SCRIPT and stay attached. The script's own arguments go after --.

    \b
    orch up train.py --workers 4 -- --epochs 5
    orch up train.py --ps 1 --workers 2
    orch up --no-python ./train.sh -n 4

    What is not said here is read from orch.yaml, if there is one. What an option says of the cluster can also be said by a
    variable (ORCH_START_TIMEOUT for --start-timeout) or a key of orch.yaml; a flag beats a variable, a variable beats the file.
    """
    spec = read_spec(ctx)[0]
    if dry_run:
        from .plan import print_dry_run

        print_dry_run(spec, as_json=as_json)
        return 0
    if any(tasks.input.files for tasks in spec.tasks):
        from .preflight import check_input

        check_input(spec)
    from .running import start  # only now: a help text needs no event loop

    return start(home, spec, ctx.params, detached=detached, as_json=as_json)
