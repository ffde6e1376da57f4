"""The settings of a command line and of the environment, as overlays over the document of the file.

This module checks nothing: the text of a flag is put into the document at the path of its setting, with the flag as its place, and the
parser reports problems. Each overlay replaces the ones before: default, file, environment, ``--set``, flag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from ..errors import Problem, SpecError, UsageError
from ..model.spec import PROGRAM_KINDS, ClusterSpec
from ..model.spec.describe import SpecOption
from ..model.spec.document import Node
from ..model.spec.sections.backend_sections import misplaced
from ..sources import Overlay, as_seen_from, instead_of_others, read_file, read_whole, tasks_directory
from .options import OPTIONS

_NOTHING_TO_RUN = (
    "there is nothing to run, and no orch.yaml here\n"
    "name a script: orch up train.py -n 2 -- ITS ARGUMENTS\n"
    "or write a spec: orch init, then orch up"
)


def read_spec(ctx: click.Context, *, needs_program: bool = True, only: Sequence[str] = ()) -> tuple[ClusterSpec, Node]:
    """The spec of the command line, and its document. Raises `SpecError`, `UsageError`.

    `needs_program` False: the spec need not name a program. `only`: the keys that are read of a file that is not named with -f; empty:
    all.
    """
    from ..model.spec import document as documents
    from ..model.spec.parse import parse

    document, base = _read_document(ctx, only)
    complete = document
    if not says(document, *PROGRAM_KINDS):
        if needs_program and not document.place:
            raise UsageError(_NOTHING_TO_RUN)
        if not needs_program:
            complete = documents.overlay(document, ("script",), Node("any.py", ctx.command_path, "any.py"))
    return parse(complete, workdir=base), document


def _read_document(ctx: click.Context, only: Sequence[str]) -> tuple[Node, str]:
    """The document of the command line, and the directory of its relative paths."""
    from ..model.spec import document as documents

    given = ctx.params
    document, base = read_file(given["file"])
    if only and not given["file"] and isinstance(document.value, dict):
        document = replace(document, value={key: node for key, node in document.value.items() if key in only})
    assignments = [documents.parse_assignment(text, "--set") for text in given["assignments"]]
    environment, flags = _option_overlays(ctx)
    for path, value in [*environment, *assignments, *flags, *_variables(given["variables"])]:
        document = documents.overlay(document, path, value)
    for path, value in _program(ctx, tasks_directory(document, base)):
        document = documents.overlay(document, path, value)
    return document, base


def says(document: Node, *keys: str) -> bool:
    """Whether the document has a value for one of these keys."""
    return isinstance(document.value, dict) and any(key in document.value and document.value[key].value is not None for key in keys)


def _option_overlays(ctx: click.Context) -> tuple[list[Overlay], list[Overlay]]:
    """The overlays of the environment, and those of the flags. An empty variable does not count."""
    environment: list[Overlay] = []
    flags: list[Overlay] = []
    for option in OPTIONS:
        if value := os.environ.get(option.variable):
            environment += _overlays(option, _meaning(option, value), option.variable)
        if (text := ctx.params[option.parameter]) is not None:
            flags += _overlays(option, text, option.name)
    (environment if _has_hostfile_variable(ctx) else flags).extend(_hostfile(ctx))
    return environment, flags


def _has_hostfile_variable(ctx: click.Context) -> bool:
    """Whether ORCH_HOSTFILE, and not the flag, names the hostfile."""
    return ctx.get_parameter_source("hostfile") is ParameterSource.ENVIRONMENT


def _overlays(option: SpecOption, text: str, place: str) -> Iterator[Overlay]:
    if option.path in PROGRAM_KINDS:
        yield from instead_of_others(option.path, place)
    if option.path == "backend.type":  # it replaces the backend of an earlier overlay
        yield from ((f"backend.{key}", Node(None, place, "")) for key, _ in misplaced(text))
    if not option.parts:
        yield option.path, _node(option, text, place)
        return
    words = text.split(",")
    if len(words) > len(option.parts):
        raise SpecError(Problem(place, f"{text!r:.80} has {len(words)} parts", f"write {option.metavar}"))
    for key, word in zip(option.parts, words, strict=False):
        if word.strip():
            yield f"{option.path}.{key}", _node(option, word.strip(), place)


def _meaning(option: SpecOption, value: str) -> str:
    """The value of a variable as the text of the option: the variable of a flag is on or off."""
    word = value.lower()
    if option.says and word in ("1", "true", "yes", "on"):
        return option.says
    if option.says and word in ("0", "false", "no", "off"):
        return option.off
    return value


def _hostfile(ctx: click.Context) -> Iterator[Overlay]:
    """The hosts of ``--hostfile`` or its variable, which replace the hosts of earlier overlays."""
    from ..model.spec.sections.host_list import read_hostfile

    name, has_flag, is_variable = ctx.params["hostfile"], ctx.params["spec_hosts"] is not None, _has_hostfile_variable(ctx)
    if not name or (has_flag and is_variable):
        return
    if has_flag or (is_variable and os.environ.get("ORCH_HOSTS")):
        names = "ORCH_HOSTS and ORCH_HOSTFILE" if is_variable else "-H and --hostfile"
        raise UsageError(f"both {names} name hosts; give one of them")
    yield "backend.hosts", read_hostfile(read_whole(Path(name)).decode("utf-8", "replace"), name)


def _variables(texts: Sequence[str]) -> Iterator[Overlay]:
    """``NAME=VALUE``. For NAME alone, the value of orch's own environment, which other users of the machine cannot see."""
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            hint = f"write --env {name}=VALUE, or set it where orch is started" if name.isidentifier() else "write --env NAME=VALUE"
            raise SpecError(Problem("--env", f"{name!r:.80} has no value, and no such variable is set here", hint))
        value = value if equals else os.environ[name]
        yield ("defaults", "env", name), Node(value, "--env", value)


def _program(ctx: click.Context, directory: str) -> Iterator[Overlay]:
    """The program of the command line, which replaces the program of the file. `directory`: the working directory of the tasks."""
    script, module = ctx.params["script"], ctx.params["spec_module"]
    if script is not None and module is not None:
        raise UsageError(f"both a script ({script}) and a module ({module}) are given; only one can run")
    if script is not None:
        chosen = "command" if ctx.params["no_python"] else "script"
        yield from instead_of_others(chosen, "SCRIPT")
        yield (chosen,), Node(as_seen_from(directory, script, chosen), "SCRIPT", script)
    elif ctx.params["no_python"]:
        raise UsageError("--no-python needs a program: orch up --no-python PROGRAM -- ARGS")
    script_args = ctx.meta["orch.script_args"]
    if script_args is not None:
        yield ("args",), Node([Node(word, "ARGS", word) for word in script_args], "ARGS")


def _node(option: SpecOption, text: str, place: str) -> Node:
    from ..model.spec import document as documents

    return Node(text, place, text) if option.is_text else documents.scalar(text, place)
