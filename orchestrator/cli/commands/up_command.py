"""``orch up``: starts a cluster, attached or detached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from worker.settings.verify_settings import VerifySettings

from ...errors import UsageError
from ..options import ViewOptions, new_home_option, spec_options, view_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...model.settings import ClusterSpec

DETACH = "Run in the background: return when the tasks have started, or when Slurm or Kubernetes has the job."


@click.command("up", cls=ScriptCommand)
@spec_options
@new_home_option
@click.option("-d", "--detach", "detached", is_flag=True, envvar="ORCH_DETACH", help=DETACH)
@click.option("--dry-run", is_flag=True, help="Print the commands and each TF_CONFIG, and start nothing.")
@view_options
@click.option(
    "--json", "as_json", is_flag=True, envvar="ORCH_JSON", help="Print JSON; orch up: a line for each event, in place of the logs."
)
@click.pass_context
def up_command(ctx: click.Context, /, home: Path, detached: bool, dry_run: bool, as_json: bool, **_: Any) -> int:
    """Start a cluster that runs SCRIPT, and show its output until the run ends. The arguments of the script go after --.

    \b
    Examples:
      orch up train.py --workers 4 -- --epochs 5
      orch up ps_train.py --ps 1 --workers 2     with a parameter server
      orch up train.py -H hostA:2,hostB:2 -d     on two hosts, in the background
      orch up --no-python ./train.sh -n 4        a program that is not Python

    Settings that are not given here come from orch.yaml, if this file exists. Most options are also variables: ORCH_WORKERS
    for --workers. An option wins over a variable, and a variable wins over the file.
    """
    spec = read_spec(ctx)[0]
    if detached:
        spec = replace(spec, backend=spec.backend.detached())
    if spec.backend.IS_EVERYWHERE and not dry_run:
        from ...backends import module_of

        if detached:
            raise UsageError("--join stays in the foreground, because each node ends with the run's exit code: leave -d out")
        if ctx.obj is not None:
            ctx.obj.withdraw()  # a node that serves another one may not need the imports for hours
        code: int | None = module_of(spec).serve(spec, str(home))
        if code is not None:
            return code
    if spec.checkpoints.resume:
        from ...control import engine_jobs
        from ...record.saves_of_run import resumed  # most runs resume none

        spec = resumed(home, spec, engine_jobs.find)
    if dry_run:
        from .plan_command import print_plan

        print_plan(spec, as_json=as_json, with_commands=True)
        return 0
    if any(tasks.input.files for tasks in spec.tasks):
        from ..input_preflight import check_input

        check_input(spec)
    if spec.verify.before:
        if not _is_as_one_process(spec, home):
            return 1
        spec = replace(spec, verify=VerifySettings())
    from ..start_run import start  # not for a help text: it imports asyncio

    return start(home, spec, ViewOptions.of(ctx), detached=detached, as_json=as_json, early=None if spec.backend.IS_EVERYWHERE else ctx.obj)


def _is_as_one_process(spec: ClusterSpec, home: Path) -> bool:
    """Compare the first steps with those of one process, and print the result on stderr."""
    import time

    from ...checks.same_training import sentences
    from ...verify import verify

    began = time.monotonic()
    found = verify(spec, home / "verify", steps=spec.verify.before)
    for line in sentences(found):
        click.echo(f"orch: {line}", err=True)
    click.echo(f"orch: note: to compare {found.steps} steps with one process took {time.monotonic() - began:.1f} s", err=True)
    return found.is_same
