"""``orch doctor``: is this machine able to run it, and what to do if not."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from ..insight import doctor, gather
from ..insight.facts import HostFacts
from ..insight.finding import Wanted
from ..insight.judge import judge
from ..model import document as documents
from ..model.document import Node
from ..model.parse import parse
from ..model.spec import ClusterSpec
from ..record.logs import wants_color
from .options import PROGRAM_KINDS, ScriptCommand, home_option, read_settings, says, spec_options

NAME = "local"


@click.command("doctor", cls=ScriptCommand)
@spec_options
@home_option
@click.option(
    "--import-timeout",
    type=click.FloatRange(1, 86400),
    default=120.0,
    metavar="S",
    help="Seconds that TensorFlow's import may take; default: 120.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--color", envvar="ORCH_COLOR", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours: auto, always or never."
)
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.pass_context
def doctor_command(ctx: click.Context, /, home: str, import_timeout: float, strict: bool, color: Any, as_json: bool, **_: Any) -> int:
    """Look at this machine and say what stands in the way of a run: the interpreter, TensorFlow, Keras, GPUs, ports, names, disk, limits.

    Takes what orch up takes and judges for that; without a script or orch.yaml, for any. Exits with 0 if a run can start, with 1 if not.
    """
    spec, strategy = _spec(ctx)
    wanted = _wanted(spec, strategy)
    facts = HostFacts(NAME, spec.python or sys.executable)
    facts = gather.look_at_machine(facts, os.path.abspath(home), wanted.ports)
    if wanted.needs_tensorflow:
        click.echo(f"orch: importing TensorFlow with {facts.program} (at most {import_timeout:g} s)", err=True)
    facts = gather.look_at_python(facts, wanted.env, import_timeout)
    findings = judge([facts], wanted)
    code = doctor.exit_code(findings, strict=strict)
    if as_json:
        click.echo(json.dumps(doctor.to_json([facts], findings, wanted, code)))
        return code
    for line in doctor.to_text([facts], findings, color=wants_color(color, sys.stdout.isatty(), os.environ)):
        click.echo(line, color=True)
    return code


def _spec(ctx: click.Context) -> tuple[ClusterSpec, str]:
    """What is to be run, as far as it is said, and its strategy; "" if nothing says one."""
    document, base = read_settings(ctx)
    is_cluster = says(document, "strategy", "tasks", *PROGRAM_KINDS)
    if not says(document, *PROGRAM_KINDS):
        document = documents.overlay(document, ("script",), Node("any.py", "orch doctor", "any.py"))
    spec = parse(document, workdir=base)
    return spec, spec.strategy if is_cluster else ""


def _wanted(spec: ClusterSpec, strategy: str) -> Wanted:
    env = dict(spec.env)
    for tasks in spec.tasks:
        env.update(tasks.env)
    is_python = spec.program.kind != "command"
    asked = [tasks.devices_of(index).gpus for tasks in spec.tasks for index in (0, *tasks.overrides)]
    gpus = any(wish.count or wish.ids for wish in asked)
    return Wanted(strategy, spec.size, ports=spec.ports, gpus=gpus, needs_tensorflow=is_python, env=env)
