"""``orch ps``, ``orch wait`` and ``orch down``: runs of this or another terminal."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..backends import load
from ..errors import DEADLINE, OrchError, UsageError
from ..model.cluster import Cluster
from ..record import render, rundir
from ..record import timeline as times
from ..record.rundir import RunDir
from .options import home_option

LOOK_S = 0.1
"""How often `orch wait --timeout` looks; without a limit the kernel wakes it."""


@click.command("ps")
@click.argument("run", required=False)
@home_option
@click.option("-a", "--all", "everything", is_flag=True, help="List all runs, newest last.")
@click.option("--timeline", is_flag=True, help="Show when each task came how far, in seconds since the run began.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps_command(run: str | None, home: str, everything: bool, timeline: bool, as_json: bool) -> int:
    """Show the tasks of RUN (default: the latest), or list all runs."""
    if everything:
        runs = rundir.list_runs(Path(os.path.abspath(home)))
        if as_json:
            click.echo(json.dumps([_summary(one, one.read_cluster()) for one in runs]))
        else:
            click.echo("\n".join(_line(one) for one in runs) or f"there is no run in {home}")
        return 0
    found = rundir.find(Path(os.path.abspath(home)), run)
    cluster = found.read_cluster()
    measured = times.measure(found.read_events(), {name: task.host for name, task in cluster.tasks.items()}) if cluster else {}
    if as_json:
        click.echo(json.dumps({**_summary(found, cluster), "tasks": _tasks(cluster), "timeline": measured}))
        return 0
    click.echo(_line(found))
    if timeline:
        click.echo(times.table(measured))
        click.echo(times.slowest(measured))
    elif cluster is not None:
        click.echo(render.table(cluster, time.time()))
    return 0


SECONDS = click.FloatRange(0)


def _not_nan(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("'nan' is not a number of seconds", ctx, parameter)
    return value


@click.command("wait")
@click.argument("run", required=False)
@home_option
@click.option("--timeout", type=SECONDS, callback=_not_nan, metavar="S", help="Give up after this many seconds, with exit code 124.")
@click.option("--json", "as_json", is_flag=True, help="Print result.json.")
def wait_command(run: str | None, home: str, timeout: float | None, as_json: bool) -> int:
    """Wait until RUN (default: the latest) is over, and exit with its code."""
    found = rundir.find(Path(os.path.abspath(home)), run)
    if not _wait(found, timeout):
        click.echo(f"orch: {found.run_id} is still running after {timeout:g} s", err=True)
        return DEADLINE
    result = found.read_result()
    if result is None:
        raise OrchError(f"the controller of {found.run_id} died before it could say how the run ended; logs: {found.path}")
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(_line(found), err=True)
    code: int = result.get("exit_code", 0)  # zero is the default and so is left out
    return code


@click.command("restart")
@click.argument("run", required=False)
@home_option
def restart_command(run: str | None, home: str) -> int:
    """Stop the tasks of RUN (default: the latest) and start them again, as its next attempt. Costs none of --max-restarts."""
    found = rundir.find(Path(os.path.abspath(home)), run)
    pid, cluster = found.controller_pid(), found.read_cluster()
    if pid is None or cluster is None:
        raise UsageError(f"{found.run_id} is not running; orch up starts a new run")
    _send(found, pid, signal.SIGUSR2)
    click.echo(f"{found.run_id}: asked to start again after attempt {cluster.attempt}", err=True)
    return 0


@click.command("down")
@click.argument("run", required=False)
@home_option
@click.option("--now", is_flag=True, help="Kill the tasks at once, without the grace period.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def down_command(run: str | None, home: str, now: bool, as_json: bool) -> int:
    """End RUN (default: the latest): SIGTERM to its tasks, SIGKILL after its grace period. Returns when nothing is left."""
    found = rundir.find(Path(os.path.abspath(home)), run)
    pid = found.controller_pid()
    if pid is not None:
        _ask(found, pid, twice=now)
        found.wait_unlocked()
    cleared = 0
    planned = found.read_plan()
    if found.read_result() is None and planned is not None:
        cleared = load(planned.spec.backend.type).cancel(found.run_id, found.path)
    if as_json:
        click.echo(json.dumps({**_summary(found, found.read_cluster()), "was_running": pid is not None, "cleared": cleared}))
    else:
        click.echo(_line(found) if pid is not None else f"{_line(found)}; it was not running")
        if cleared:
            click.echo(f"{cleared} processes that its dead controller had left were killed")
    return 0


def _ask(run: RunDir, pid: int, *, twice: bool) -> None:
    _send(run, pid, signal.SIGTERM)
    if twice:
        time.sleep(LOOK_S)  # two signals at once would arrive as one
        if run.controller_pid() == pid:
            _send(run, pid, signal.SIGTERM)


def _send(run: RunDir, pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise OrchError(f"the run belongs to another user (its controller is process {pid})") from None


def _wait(run: RunDir, timeout: float | None) -> bool:
    if timeout is None:
        run.wait_unlocked()
        return True
    deadline = time.monotonic() + timeout
    while run.controller_pid() is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _state(run: RunDir) -> str:
    """``running``, how it ended, or ``lost`` if its controller died without a verdict."""
    if run.controller_pid() is not None:
        return "running"
    result = run.read_result()
    return str(result["outcome"]) if result else "lost"


def _line(run: RunDir) -> str:
    state = _state(run)
    result = run.read_result() or {}
    text = f"{run.run_id}: {state}"
    if state == "running":
        cluster = run.read_cluster()
        return f"{text} ({cluster.phase.value}) since {render.clock(cluster.started_at)}" if cluster else text
    if result:
        took = render.describe_seconds(result.get("ended_at", 0) - result.get("started_at", 0))
        return f"{text} after {took}, exit code {result.get('exit_code', 0)}"
    return f"{text} (its controller died without a verdict; orch down {run.run_id} ends what it may have left)"


def _summary(run: RunDir, cluster: Cluster | None) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "directory": str(run.path),
        "state": _state(run),
        "phase": cluster.phase.value if cluster else None,
        "controller_pid": run.controller_pid(),
        "result": run.read_result(),
    }


def _tasks(cluster: Cluster | None) -> list[dict[str, Any]]:
    if cluster is None:
        return []
    return [asdict(task) for task in cluster.tasks.values()]
