"""``orch stacks``: the lines of Python code at which the tasks of a run are."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...control.requests import ask_running
from ...model.policy import stragglers
from ...model.task_names import group_tasks
from ...record import stack_report
from ...record.run_directory import RunDir
from ...record.run_progress import read_cluster
from ...record.run_store import plan_of
from ...record.samples import read_latest
from ...record.text.format import json_text
from ...record.text.lines import clean
from .. import completion
from ..options import only_tasks, run_argument

TASK = "Show only this task, or tasks of this type. May be repeated."


@click.command("stacks")
@run_argument
@click.option("--task", "--only", "only", multiple=True, metavar="TASK", shell_complete=completion.tasks, help=TASK)
@click.option("--full", is_flag=True, help="Print the stacks of all threads too.")
@click.option("--json", "as_json", is_flag=True, help="Print the threads of each task with their frames as a JSON object; null: no answer.")
def stacks_command(run: RunDir, only: Sequence[str], full: bool, as_json: bool) -> int:
    """Show at which line of Python code each task of RUN (default: the latest run) is. Tasks at the same line share a row.

    \b
    Examples:
      orch stacks
      orch stacks --full    the stacks of all threads
    """
    planned, cluster = plan_of(run), read_cluster(run)
    shown = only_tasks(only, list(cluster.tasks))
    new = stack_report.collect(run, planned, cluster, lambda: ask_running(run, "stacks"))
    new = {name: text for name, text in new.items() if shown is None or name in shown}
    answers = {name: stack_report.parse(text) for name, text in new.items()}
    if as_json:
        click.echo(json_text({name: stack_report.to_json(text) for name, text in new.items()}))
        return 0
    for line in stack_report.summarise({name: answer for name, answer in answers.items() if answer}):
        click.echo(clean(line))
    if absent := stragglers.describe_absent(read_latest(run.path), stragglers.training(cluster)):
        click.echo(absent)
    silent = [name for name, answer in answers.items() if not answer]
    if silent:
        click.echo(f"{group_tasks(silent)}: no answer (not Python, or not started yet)")
    for name, text in new.items() if full else ():
        click.echo("\n".join(["", name, *(clean(line) for line in stack_report.in_order(text))]))
    return 0
