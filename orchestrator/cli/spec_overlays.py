"""The settings of a command line and of the environment, as overlays over the document of the file.

This module checks nothing: the text of a flag is put into the document at the path of its setting, with the flag as its place, and the
parser reports problems. Each overlay replaces the ones before: default, file, environment, ``--set``, flag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from worker.machine.cpu_cores import count_cores
from worker.values.words import count_of

from ..backends.allocations import use_allocation
from ..errors import Problem, SpecError, UsageError
from ..model.settings import PROGRAM_KINDS, ClusterSpec
from ..model.settings.document import Node, overlay, parse_assignment, scalar
from ..model.settings.findings import nearest
from ..model.settings.host_list import read_hostfile
from ..sources import as_seen_from, chooses_backend, read_file, read_whole, tasks_directory, with_program, with_value
from .script_command import AFTER_DASHES, OPTIONS

_IN_BRACES = re.compile(r"\$\{\w+\}")
_SAVES = "checkpoint"
NO_SAVES = "checkpoints.every alone saves nothing, unless a module of the script uses worker.checkpoints: add --checkpoint for Keras's fit"
_FOR_SHELLS = ("prepare", "setup")
"""Keys whose texts a shell may read."""


def notes(ctx: click.Context, document: Node, environment: Mapping[str, str]) -> list[str]:
    """The notes on a spec and on the variables of orch's own environment."""
    known = {name for parameter in ctx.command.params for name in _variables(parameter)} | {option.variable for option in OPTIONS}
    found = []
    for name in sorted(environment if "ORCH_TASK" not in environment else ()):  # in a task, orch has set them itself
        right = nearest(name, known, cutoff=0.85) if name.startswith("ORCH_") and name not in known else ""
        if right:
            found.append(f"{name} is no variable of orch; did you mean {right}?")
    found += [f"{node.place}: {path}: orch does not replace {text} by a variable" for path, node, text in _unreplaced(document, "")]
    return found


def can_save(spec: ClusterSpec) -> bool:
    """True if the program may save by itself; False for a script that can be read here and does not name it. Its modules are not read."""
    if spec.program.kind != "script":
        return True
    try:
        return _SAVES in Path(spec.workdir, spec.program.target).read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return True


def _variables(parameter: click.Parameter) -> list[str]:
    given = parameter.envvar
    return [given] if isinstance(given, str) else list(given or ())


def _unreplaced(node: Node, path: str) -> Iterator[tuple[str, Node, str]]:
    """The texts of a file with a variable as shells and docker compose have it."""
    if isinstance(node.value, dict):
        for key, item in node.value.items():
            if key not in _FOR_SHELLS:
                yield from _unreplaced(item, f"{path}.{key}" if path else key)
    elif isinstance(node.value, list):
        for item in node.value:
            yield from _unreplaced(item, path)
    elif isinstance(node.value, str) and (found := _IN_BRACES.search(node.value)):
        yield path, node, found[0]


_NOTHING_TO_RUN = (
    "there is nothing to run, and no orch.yaml here or above\n"
    "fix: name a script: {command} train.py -n 2 -- ITS ARGUMENTS\n"
    "or write orch.yaml: orch init, then {command}"
)
_NOTHING_TO_RESUME = (
    "there is nothing to run: --resume takes the checkpoints of a run, and not its script\n"
    "fix: name the script: {command} train.py --resume RUN\n"
    "or take all settings of RUN: {command} -f .orch/runs/RUN/spec.yaml --resume RUN"
)


def read_spec(ctx: click.Context, *, needs_program: bool = True, only: Sequence[str] = ()) -> tuple[ClusterSpec, Node]:
    """The spec of the command line, and its document. `only`: the keys read of orch.yaml, without -f. Raises `UsageError`."""
    from ..model.settings.parse import parse  # not for a help text

    given = ctx.params
    document, base = read_file(given["file"])
    if not given["file"] and document.place.startswith(".."):
        click.echo(f"orch: the settings of {document.place}", err=True)
    if only and not given["file"] and isinstance(document.value, dict):
        document = replace(document, value={key: node for key, node in document.value.items() if key in only})
    document = _with_options(document, ctx, ParameterSource.ENVIRONMENT)
    assigned = (parse_assignment(text, "--set") for text in given["assignments"])
    for path, value in sorted(assigned, key=lambda one: not chooses_backend(one[0])):
        document = with_value(document, path, value)
    document = _with_options(document, ctx, ParameterSource.COMMANDLINE)
    for text in given["variables"]:
        document = _with_variable(document, text)
    document, place = use_allocation(document, os.environ)
    if place:
        click.echo(f"orch: {place}", err=True)
    document = complete = _with_program(document, ctx, base)
    for note in notes(ctx, document, os.environ):
        click.echo(f"orch: note: {note}", err=True)
    if not says(document, *PROGRAM_KINDS):
        if needs_program and not document.place:
            line = ctx.meta.get(AFTER_DASHES)
            missing = _NOTHING_TO_RESUME if given.get("spec_resume") else _NOTHING_TO_RUN
            order = f"there is nothing to run: write the script before --, and its arguments after it: {line}"
            raise UsageError(order if line else missing.format(command=ctx.command_path))
        if not needs_program:
            complete = with_program(document, "script", "any.py", ctx.command_path)
    spec = parse(complete, workdir=base)
    if needs_program and given["script"] is None and spec.program.kind == "script" and isinstance(complete.value, dict):
        named, path = complete.value["script"].place, os.path.join(spec.workdir, spec.program.target)
        if not os.path.exists(path):
            click.echo(f"orch: note: {named}: there is no script {path} here", err=True)
    if spec.checkpoints.every and not spec.checkpoints.fit and not can_save(spec):
        click.echo(f"orch: note: {NO_SAVES}", err=True)
    if spec.checkpoints.fit and spec.program.kind == "command":
        click.echo("orch: note: --checkpoint saves Keras's fit of a Python program, and nothing of a program that is not Python", err=True)
    return spec, document


def says(document: Node, *keys: str) -> bool:
    """True if the document has a value for one of these keys."""
    return isinstance(document.value, dict) and any(key in document.value and document.value[key].value is not None for key in keys)


def _with_options(document: Node, ctx: click.Context, source: ParameterSource) -> Node:
    """The document with the options that come from `source`: from variables, or from the command line."""
    is_variable = source is ParameterSource.ENVIRONMENT
    for option in OPTIONS:
        place = option.variable if is_variable else option.name
        if ctx.get_parameter_source(option.parameter) is source:
            value: Any = ctx.params[option.parameter]
        elif (
            is_variable and option.parameter not in ctx.params and (given := os.environ.get(option.variable))
        ):  # a setting without an option
            value = _yes_or_no(given, place, ctx) if option.says else given
        else:
            continue
        if option.name == "--workers" and value in ("auto", "gpu", "cpu", "all"):
            raise SpecError(Problem(place, f"must be a number, not {value!r}", f"write the number: {_this_machine()}"))
        text = ",".join(value) if option.adds_up else option.says[value] if option.says else value
        if option.path in PROGRAM_KINDS:
            document = with_program(document, option.path, text, place)
            continue
        node = scalar(text, place)
        document = with_value(document, option.path, Node(text, place, text) if node.value is None else node)
    return _with_hostfile(document, ctx, source)


def _yes_or_no(text: str, variable: str, ctx: click.Context) -> bool:
    try:
        return click.BOOL.convert(text, None, ctx)
    except click.BadParameter as error:
        error.param_hint = variable
        raise


def _this_machine() -> str:
    """``this machine has 2 cores and no GPU``"""
    from worker.host.facts import machine_survey  # rarely needed

    gpus = len(machine_survey.nvidia()["gpus"])
    return f"this machine has {count_of(count_cores(), 'core')} and {count_of(gpus, 'GPU') if gpus else 'no GPU'}"


def _with_hostfile(document: Node, ctx: click.Context, source: ParameterSource) -> Node:
    """The document with the hosts of ``--hostfile`` or its variable, which replace the hosts of a weaker source."""
    file, hosts = (ctx.get_parameter_source(name) for name in ("hostfile", "spec_hosts"))
    if file is not source or (hosts is ParameterSource.COMMANDLINE and hosts is not file):
        return document
    if hosts is file:
        names = "-H and --hostfile" if file is ParameterSource.COMMANDLINE else "ORCH_HOSTS and ORCH_HOSTFILE"
        raise UsageError(f"both {names} name hosts; give one of them")
    name = ctx.params["hostfile"]
    try:
        text = read_whole(Path(name), "write lines such as hostA:2, or use -H hostA:2").decode("utf-8", "replace")
    except UsageError as error:
        raise UsageError(f"--hostfile: {error}") from None
    return overlay(document, "backend.hosts", read_hostfile(text, name))


def _with_variable(document: Node, text: str) -> Node:
    """The document with ``NAME=VALUE``; for NAME alone, with the value of orch's own environment, which other users cannot see."""
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        hint = f"write --env {name}=VALUE, or set it where orch is started" if name.isidentifier() else "write --env NAME=VALUE"
        raise SpecError(Problem("--env", f"{name!r:.80} has no value, and no such variable is set here", hint))
    value = value if equals else os.environ[name]
    return overlay(document, ("defaults", "env", name), Node(value, "--env", value))


def _with_program(document: Node, ctx: click.Context, base: str) -> Node:
    """The document with the script of the command line, which replaces the program of the file, and with the script's arguments."""
    script, module, script_args = ctx.params["script"], ctx.params["spec_module"], ctx.meta["orch.script_args"]
    is_module = module is not None and ctx.get_parameter_source("spec_module") is ParameterSource.COMMANDLINE
    if script is not None and is_module:
        raise UsageError(f"both a script ({script}) and a module ({module}) are given; only one can run")
    if script is not None:
        chosen = "command" if ctx.params["no_python"] else "script"
        target = as_seen_from(tasks_directory(document, base), script, chosen)
        document = with_program(document, chosen, target, "SCRIPT")
    elif ctx.params["no_python"]:
        raise UsageError("--no-python needs a program: orch up --no-python PROGRAM -- ARGS")
    if script_args is None:
        return document
    return overlay(document, "args", Node([Node(word, "ARGS", word) for word in script_args], "ARGS"))
