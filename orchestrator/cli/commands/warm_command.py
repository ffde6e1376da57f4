"""``orch warm``: a process that has imported TensorFlow, kept between runs."""

from __future__ import annotations

import functools
from typing import Any

import click

from ...backends import Imports, interpreters, warm_process
from ...errors import UsageError
from ...record.text.format import describe_moment, describe_seconds, iso_times, json_text
from ..options import Span, import_timeout_option, spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec

IDLE_S = 1800.0
KEYS = ("module", "workdir", "python", "keras.mode", "strategy", "defaults.env", "defaults.log_level")
"""The keys of orch.yaml on which the imports depend."""
IDLE = "End the process this long after the last `orch up`, in seconds or as 30m. [default: 30m]"


@click.group("warm")
def warm_command() -> None:
    """Keep a process that has imported TensorFlow between runs. orch up on this machine then starts without this import.

    \b
    Examples:
      orch warm start
      orch warm status
      orch warm stop

    orch up uses this warm process by itself, and says so. The process belongs to one user, and ends after a time without
    use. A run does not use it if the interpreter, an imported file, a package, orch or the environment of the imports has changed.
    """


@warm_command.command("start", cls=ScriptCommand)
@functools.partial(spec_options, keys=KEYS)
@click.option(
    "--preload", multiple=True, metavar="MODULE", help="A module to import. May be repeated. [default: preload of orch.yaml, or tensorflow]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--idle-timeout", type=Span(1), default=IDLE_S, metavar="TIME", help=IDLE)
@import_timeout_option("the imports")
@click.pass_context
def start_command(
    ctx: click.Context, /, preload: tuple[str, ...], as_json: bool, idle_timeout: float, import_timeout: float, **_: Any
) -> int:
    """Start the warm process, and return when it is ready. This replaces a warm process that no longer fits; its runs continue.

    \b
    Examples:
      orch warm start
      orch warm start train.py --env TF_CPP_MIN_LOG_LEVEL=2

    Give the options of your runs: the warm process must have their interpreter, environment and imports.
    """
    spec = read_spec(ctx, needs_program=False)[0]
    names = preload or spec.imported_ahead
    if not names:
        raise UsageError("orch.yaml says preload: [], so nothing is imported ahead; take that out of it, or name modules with --preload")
    python = interpreters.of_this_machine(spec)
    what = f"importing {', '.join(names)} with {python}"
    click.echo(f"orch: {what}, if that is not done yet (at most {import_timeout:g} s)", err=True)
    answer = warm_process.start(python, Imports(names, spec.env, spec.workdir), idle_timeout, import_timeout)
    if as_json:
        click.echo(_json(answer))
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
    """End the warm process. Runs that use it continue.

    \b
    Example:
      orch warm stop
    """
    answer = warm_process.stop()
    if as_json:
        click.echo(json_text(answer))
    elif not answer["was_running"]:
        click.echo("no warm process was running")
    else:
        click.echo(f"process {answer['pid']} was {'killed: it did not end by itself' if answer['killed'] else 'ended'}")
    return 0


@warm_command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status_command(as_json: bool) -> int:
    """Show whether the warm process runs, its cost and its log.

    \b
    Example:
      orch warm status

    orch up prints whether it uses this process, and if not, why.
    """
    answer = warm_process.status()
    if as_json:
        click.echo(_json(answer))
    elif answer["running"]:
        click.echo(f"{_line(answer)}\nits output is in {answer['log']}")
    else:
        click.echo("no warm process is running (orch warm start)")
    return 0


def _json(answer: dict[str, Any]) -> str:
    names = {"since": "imported_at"}
    return json_text(iso_times({names.get(name, name): value for name, value in answer.items()}))


def _line(answer: dict[str, Any]) -> str:
    memory = f", {answer['pss_bytes'] / 1e6:.0f} MB (PSS)" if answer["pss_bytes"] is not None else ""
    uses = f"used {answer['uses']} times" if answer["uses"] != 1 else "used once"
    left = describe_seconds(max(0.0, answer["idle_timeout_s"] - answer["idle_s"]))
    return (
        f"process {answer['pid']} has imported {', '.join(answer['preload'])} at {describe_moment(answer['since'])} "
        f"(in {describe_seconds(answer['import_s'])}){memory}; {uses}; ends in {left} unless a run uses it"
    )
