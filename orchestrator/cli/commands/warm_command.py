"""``orch warm``: a process that has imported TensorFlow, kept between runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ...backends import Imports, interpreters, load_checked, warm_process
from ...errors import UsageError
from ...model.spec import DEFAULT_PRELOAD, ClusterSpec
from ...record.text.format import describe_moment, describe_seconds
from ..options import ScriptCommand, import_timeout_option, spec_options
from ..spec_overlays import read_spec

F = TypeVar("F", bound=Callable[..., Any])
IDLE_S = 1800.0
IDLE = "End the process after this many seconds without use."


@click.group("warm")
def warm_command() -> None:
    """Keep a process that has imported TensorFlow between runs. orch up on this machine then starts without this import.

    \b
    Examples:
      orch warm start
      orch warm status
      orch warm stop

    orch up uses this warm process by itself, and a line says so. The process belongs to one user, and ends after a time without
    use. A run does not use it if the interpreter, an imported file, a package, orch or the environment of the imports has changed.
    """


def _options(command: F) -> F:
    """The common options of `start` and `status`."""
    preload = click.option(
        "--preload",
        multiple=True,
        metavar="MODULE",
        help="A module to import. May be repeated. Default: preload of orch.yaml, or tensorflow.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return spec_options(preload(as_json(command)))


def _read_spec(ctx: click.Context, preload: tuple[str, ...]) -> tuple[ClusterSpec, tuple[str, ...]]:
    """The spec of `orch up` with the same arguments, and the modules to import for it. SCRIPT is optional."""
    spec = read_spec(ctx, needs_program=False)[0]
    return spec, preload or spec.imported_ahead


@warm_command.command("start", cls=ScriptCommand)
@_options
@click.option("--idle-timeout", type=float, default=IDLE_S, show_default=True, metavar="S", help=IDLE)
@import_timeout_option("the imports")
@click.pass_context
def start_command(
    ctx: click.Context, /, preload: tuple[str, ...], as_json: bool, idle_timeout: float, import_timeout: float, **_: Any
) -> int:
    """Start the warm process, and return when it is ready. This replaces a warm process that no longer fits; its runs go on.

    \b
    Examples:
      orch warm start
      orch warm start train.py --env TF_CPP_MIN_LOG_LEVEL=2

    The options are those of orch up. Interpreter, environment and preload are those of such a run.
    """
    if not 0 < idle_timeout < float("inf"):
        raise UsageError("--idle-timeout must be a positive number of seconds")
    spec, names = _read_spec(ctx, preload)
    if not names:
        raise UsageError("the spec says preload: [], so nothing is imported ahead; take that out of it, or name modules with --preload")
    python = interpreters.of_this_machine(spec)
    what = f"importing {', '.join(names)} with {python}"
    click.echo(f"orch: {what}, if that is not done yet (at most {import_timeout:g} s)", err=True)
    answer = warm_process.start(python, Imports(names, spec.env, spec.workdir), idle_timeout, import_timeout)
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    if answer["was_running"]:
        click.echo("it was running already")
    elif answer["replaced"]:
        click.echo(f"replaced a warm process that no longer fits: {answer['replaced']}")
    click.echo(_line(answer))
    return 0


@warm_command.command("stop")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stop_command(as_json: bool) -> int:
    """End the warm process. Runs that use it go on.

    \b
    Example:
      orch warm stop
    """
    answer = warm_process.stop()
    if as_json:
        click.echo(json.dumps(answer))
    elif not answer["was_running"]:
        click.echo("no warm process was running")
    else:
        click.echo(f"process {answer['pid']} was {'killed: it did not end by itself' if answer['killed'] else 'ended'}")
    return 0


@warm_command.command("status", cls=ScriptCommand)
@_options
@click.pass_context
def status_command(ctx: click.Context, /, preload: tuple[str, ...], as_json: bool, **_: Any) -> int:
    """Show the warm process: whether it runs, what it costs, and whether a run from here would use it.

    \b
    Example:
      orch warm status train.py

    The options are those of orch up. With the same options, the answer is the one that this orch up would get.
    """
    spec, names = _read_spec(ctx, preload)
    imports = Imports(names or DEFAULT_PRELOAD, spec.env, spec.workdir)
    answer = warm_process.status(interpreters.of_this_machine(spec), imports)
    obstacle = _obstacle(spec, names)
    if answer["running"] and obstacle:
        answer |= {"refused": obstacle}
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    click.echo(_line(answer) if answer["running"] else "no warm process is running (orch warm start)")
    if answer["running"] and answer["refused"]:
        ended = "; it has ended" if answer["stale"] else ""
        click.echo(f"a run that is started here does not use it: {answer['refused']}{ended}")
    return 0


def _obstacle(spec: ClusterSpec, names: tuple[str, ...]) -> str:
    """Why no warm process can serve a run of this spec; empty if one can."""
    if not names:
        return "the spec says preload: []"
    if not any(host.is_here for host in load_checked(spec).hosts(spec)):
        return "its tasks run on other hosts"
    return ""


def _line(answer: dict[str, Any]) -> str:
    memory = f", {answer['pss_bytes'] / 1e6:.0f} MB (PSS)" if answer["pss_bytes"] is not None else ""
    left = answer["idle_timeout_s"] - answer["idle_s"]
    use = f"in use by {answer['running_agents']}" if answer["running_agents"] else f"ends in {describe_seconds(left)} unless it is used"
    uses = f"used {answer['uses']} times" if answer["uses"] != 1 else "used once"
    return (
        f"process {answer['pid']} has imported {', '.join(answer['preload'])} at {describe_moment(answer['since'])} "
        f"(in {describe_seconds(answer['import_s'])}){memory}; {uses}; {use}"
    )
