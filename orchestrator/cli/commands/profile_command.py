"""``orch profile``: TensorFlow's profiler in all tasks of a run, at one moment."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from worker.protocol.task_id import DATA_SERVICE, PREPARE, TENSORBOARD
from worker.values.words import count_of

from ...control.requests import LONGEST_PROFILE_S, ask_running
from ...errors import OrchError, UsageError
from ...model.task_names import group_tasks
from ...record.run_directory import RunDir
from ...record.run_progress import read_cluster
from ...record.run_store import plan_of
from ...record.text.format import json_text
from ...record.text.lines import clean
from ...views import answers
from .. import completion
from ..options import Span, exact_run_argument, only_tasks
from .run_commands import refuse_unclear

TASK = "Profile only this task, or tasks of this type. May be repeated."
FOR = "How long the profiler runs: seconds, or 500ms. [default: 2s]"
RISK = "Also profile tasks in which TensorFlow's profiler is known to crash. A crash ends the attempt of the whole cluster."


@click.command("profile")
@exact_run_argument
@click.option("--for", "seconds", type=Span(0.001, LONGEST_PROFILE_S), default=2.0, metavar="TIME", help=FOR)
@click.option("--task", "--only", "only", multiple=True, metavar="TASK", shell_complete=completion.tasks, help=TASK)
@click.option("--risk-crash", "at_risk", is_flag=True, help=RISK)
@click.option("--json", "as_json", is_flag=True, help="Print the path of each profile, by task, as a JSON object.")
def profile_command(run: RunDir, seconds: float, only: Sequence[str], at_risk: bool, as_json: bool) -> int:
    """Profile RUN (default: the latest run) with TensorFlow's profiler, for a short time. The script needs no change.

    \b
    Examples:
      orch profile                     two seconds of all tasks
      orch profile --for 5s --task worker-0

    The files are in the run's directory, for TensorBoard with the package tensorboard-plugin-profile. While the profiler runs, the tasks
    are a little slower.

    Under MultiWorkerMirroredStrategy, TensorFlow 2.18 to 2.21 often crashes when it profiles another task than the first. orch leaves
    these tasks out and warns, unless you give --risk-crash.
    """
    ctx = click.get_current_context()
    refuse_unclear(ctx.params["home"], ctx.params["run"], run, "profile")
    planned, cluster = plan_of(run), read_cluster(run)
    shown = only_tasks(only, list(cluster.tasks))
    commands = {str(task.id) for task in planned.tasks if task.order.program.kind == "command"}
    asked = [name for name, task in cluster.tasks.items() if (shown is None or name in shown) and not task.has_ended]
    tasks = [name for name in asked if name not in commands and cluster.tasks[name].type not in (PREPARE, TENSORBOARD, *DATA_SERVICE)]
    if not tasks:
        reason = "its program is no Python program" if commands & {*asked} else "no task of it runs"
        raise UsageError(f"{run.run_id} cannot be profiled: {reason}")
    request = time.strftime("%Y_%m_%d_%H_%M_%S")
    names = [*only] or sorted({cluster.tasks[name].type for name in tasks})
    click.echo(f"orch: asking {group_tasks(tasks)} for {seconds:g} s of TensorFlow's profiler", err=True)
    wanted = {"tasks": names, "id": request, "seconds": seconds, "at_risk": at_risk}
    found = answers.collect(run, cluster, tasks, request, seconds, lambda: ask_running(run, "profile", **wanted))
    return _show(run, request, found, as_json)


def _show(run: RunDir, request: str, found: dict[str, answers.ProfileAnswer], as_json: bool) -> int:
    try:
        paths = answers.write(run, request, found)
    except OSError as error:
        raise OrchError(f"a profile cannot be written below {answers.directory(run)}: {error.strerror or error}") from None
    if as_json:
        click.echo(json_text({name: str(path) for name, path in paths.items()}))
    for name, path in () if as_json else paths.items():
        click.echo(f"{name}: {path} ({len(found[name].data) / 1e6:.1f} MB, {found[name].seconds:.1f} s)")
    for reason in dict.fromkeys(one.refused for one in found.values() if one.refused):
        refused = [name for name, one in found.items() if one.refused == reason]
        click.echo(f"orch: note: {group_tasks(refused)} left out: {clean(reason)}; --risk-crash tries it nevertheless", err=True)
    for reason in dict.fromkeys(one.failed for one in found.values() if one.failed):
        failed = [name for name, one in found.items() if one.failed == reason]
        click.echo(f"orch: warning: {group_tasks(failed)}: no profile: {clean(reason)}", err=True)
    if paths:
        begins = [found[name].begun for name in paths]
        apart = f", which began within {1000 * (max(begins) - min(begins)):.0f} ms" if len(begins) > 1 else ""
        count = count_of(len(paths), "profile")
        click.echo(f"orch: {count}{apart}; to look: tensorboard --logdir {answers.directory(run)} (tensorboard-plugin-profile)", err=True)
    return 0 if paths and not any(one.failed for one in found.values()) else 1
