"""Notes about what a user has written and orch does not understand as the user may think: lines on stderr, and no refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ..model.settings import ClusterSpec
from ..model.settings.document import Node
from ..model.settings.findings import nearest
from .script_command import OPTIONS

_IN_BRACES = re.compile(r"\$\{\w+\}")
_SAVES = "checkpoint"
NO_SAVES = "checkpoints.every alone saves nothing: add --checkpoint for Keras's fit, or use worker.checkpoints in the script"
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
    """True if the program may save by itself. Only of a script that can be read here, and does not name it, this is known not to be so."""
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
