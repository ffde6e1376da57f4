"""``orch warm``: a process that has imported TensorFlow, kept between runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import UsageError
from ..insight import warm
from ..model.spec import DEFAULT_PRELOAD
from ..record.words import describe_moment, describe_seconds
from .options import import_timeout_option

F = TypeVar("F", bound=Callable[..., Any])
IDLE_S = 1800.0


@click.group("warm")
def warm_command() -> None:
    """Keep a process that has imported TensorFlow between runs, so that orch up on this machine need not wait for that.

    orch up uses it by itself and says so. It is this user's alone, ends when it has not been used for a while, and is not used
    once the interpreter, an imported file, an installed package, orch itself or the environment of the imports has changed.
    """


def _options(command: F) -> F:
    """What `start` and `status` have in common."""
    python = click.option("--python", envvar="ORCH_PYTHON", metavar="PATH", help="The tasks' interpreter; default: orch's own.")
    preload = click.option(
        "--preload", multiple=True, metavar="MODULE", help="What it imports, as in the spec; may be repeated. Default: tensorflow."
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return python(preload(as_json(command)))


@warm_command.command("start")
@_options
@click.option(
    "--idle-timeout", type=float, default=IDLE_S, show_default=True, metavar="S", help="End it after so many seconds without use."
)
@import_timeout_option("the imports")
def start_command(python: str | None, preload: tuple[str, ...], as_json: bool, idle_timeout: float, import_timeout: float) -> int:
    """Start it, and return when it is ready. One that does not fit any more is replaced; runs that came from it go on."""
    if not 0 < idle_timeout < float("inf"):
        raise UsageError("--idle-timeout must be a positive number of seconds")
    names = preload or DEFAULT_PRELOAD
    click.echo(
        f"orch: importing {', '.join(names)} with {python or sys.executable}, unless that is done already (at most {import_timeout:g} s)",
        err=True,
    )
    options = {"preload": names, "idle_s": idle_timeout, "import_s": import_timeout}
    answer = warm.ask("start", options, python, more_s=import_timeout)
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    if answer["was_running"]:
        click.echo("it was running already")
    elif answer["replaced"]:
        click.echo(f"in place of one that did not fit: {answer['replaced']}")
    click.echo(_line(answer))
    return 0


@warm_command.command("stop")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stop_command(as_json: bool) -> int:
    """End it. Runs that came from it go on."""
    answer = warm.ask("stop", {})
    if as_json:
        click.echo(json.dumps(answer))
    elif not answer["was_running"]:
        click.echo("no warm process was running")
    else:
        click.echo(f"process {answer['pid']} was {'killed: it did not answer' if answer['killed'] else 'ended'}")
    return 0


@warm_command.command("status")
@_options
def status_command(python: str | None, preload: tuple[str, ...], as_json: bool) -> int:
    """Say whether it is there, what it costs, and whether a run that was started here would use it."""
    answer = warm.ask("status", {"preload": preload or DEFAULT_PRELOAD}, python)
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    click.echo(_line(answer) if answer["running"] else "no warm process is running (orch warm start)")
    if answer["running"] and answer["refused"]:
        ended = "; it has ended" if answer["stale"] else ""
        click.echo(f"a run that is started here does not use it: {answer['refused']}{ended}")
    return 0


def _line(answer: dict[str, Any]) -> str:
    memory = f", {answer['pss_bytes'] / 1e6:.0f} MB (PSS)" if answer["pss_bytes"] is not None else ""
    left = answer["idle_timeout_s"] - answer["idle_s"]
    use = f"in use by {answer['running_agents']}" if answer["running_agents"] else f"ends in {describe_seconds(left)} unless it is used"
    uses = f"used {answer['uses']} times" if answer["uses"] != 1 else "used once"
    return (
        f"process {answer['pid']} has imported {', '.join(answer['preload'])} at {describe_moment(answer['since'])} "
        f"(in {describe_seconds(answer['import_s'])}){memory}; {uses}; {use}"
    )
