"""``orch placement``: the devices on which operations ran, from the logs of the tasks."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...record.run_directory import RunDir
from ...record.run_progress import read_cluster
from ...record.run_store import check_attempt, plan_of
from ...record.text.format import json_text
from ...views import run_placement
from .. import completion
from ..options import Count, only_tasks, run_argument

TASK = "Show only this task, or tasks of this type. May be repeated."


@click.command("placement")
@run_argument
@click.option("--task", "--only", "tasks", multiple=True, metavar="TASK", shell_complete=completion.tasks, help=TASK)
@click.option("--op", "ops", multiple=True, metavar="NAME", help="Show only this operation: MatMul, '*Variable*'. May be repeated.")
@click.option("--attempt", type=Count(1), metavar="N", help="Show this attempt. [default: the last attempt of each task]")
@click.option("-a", "--all", "everything", is_flag=True, help="Also show constants, arguments and the like.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def placement_command(run: RunDir, tasks: Sequence[str], ops: Sequence[str], attempt: int | None, everything: bool, as_json: bool) -> int:
    """Show on which devices the operations of RUN (default: the latest run) ran.

    \b
    Examples:
      orch up train.py --log-placement     a run that logs its placement
      orch placement
      orch placement --op '*MatMul*' --task worker-0

    The command counts the lines that TensorFlow logs with --log-placement. It also shows operations that fell back to the
    CPU, and variables that are used on another device than their own.
    """
    plan_of(run)  # a run without tasks has nothing to show
    cluster = read_cluster(run)
    check_attempt(run, attempt)
    shown = only_tasks(tasks, list(cluster.tasks))
    # A task that was restarted alone has a later attempt than the others.
    attempts = {name: attempt or task.attempt for name, task in cluster.tasks.items() if shown is None or name in shown}
    read = run_placement.read(run, attempts)
    wanted = [run_placement.with_ops(one, ops) for one in read] if ops else read
    if as_json:
        click.echo(json_text(run_placement.to_json(run.run_id, attempts, wanted)))
        return 0
    if not any(one.counts for one in read):
        click.echo(f"orch: note: {run_placement.NOTHING_LOGGED.format(run=run.run_id)}", err=True)
        return 0
    click.echo("\n".join(run_placement.to_text(wanted, everything=everything or bool(ops))))
    return 0
