"""``orch stacks``: the lines of Python code at which the tasks of a run are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import click

from ...control.requests import ask_running
from ...errors import UsageError
from ...model.planning.plan import Plan
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
@click.option("--native", is_flag=True, help="Print the stacks with C and C++ frames. Needs py-spy; only for tasks on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the threads of each task with their frames as a JSON object; null: no answer.")
def stacks_command(run: RunDir, only: Sequence[str], full: bool, native: bool, as_json: bool) -> int:
    """Show at which line of Python code each task of RUN (default: the latest run) is. Tasks at the same line share a row.

    \b
    Examples:
      orch stacks
      orch stacks --full      the stacks of all threads
      orch stacks --native    with C and C++ frames
    """
    planned, cluster = plan_of(run), read_cluster(run)
    shown = only_tasks(only, list(cluster.tasks))
    py_spy = _py_spy_for(planned) if native else ""
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
    for name in new if native else ():
        click.echo(f"\n{name}")
        if pid := cluster.tasks[name].pid:
            subprocess.run([py_spy, "dump", "--native", "--pid", str(pid)], check=False)
    return 0


def _py_spy_for(planned: Plan) -> str:
    """The path of py-spy. Raises `UsageError` if it is not installed, or if a task is on another host."""
    if not all(host.is_here for host in planned.hosts):
        how = "run py-spy dump --native --pid PID on their hosts (orch ps has the pids)"
        raise UsageError(f"--native looks into tasks on this machine only; {how}")
    found = find_py_spy()
    if found is None:
        raise UsageError("--native needs py-spy, which is not installed: pip install py-spy")
    return found


def find_py_spy() -> str | None:
    return shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")
