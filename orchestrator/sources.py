"""The sources of a spec: the file, and a program that the caller names instead of the program in the file."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import Problem, SpecError, UsageError
from .model.spec import PROGRAM_KINDS
from .model.spec import document as documents
from .model.spec.document import Node


def read_file(name: str | None) -> tuple[Node, str]:
    """The document of a file, and the directory in which its paths start. None: `orch.yaml` in this directory, if it exists."""
    path = Path(name or "orch.yaml")
    if name is None and not path.is_file():
        return documents.empty(), os.getcwd()
    document = documents.read(read_whole(path), str(path))
    real = path.resolve()
    # A pipe, such as -f <(...), and the deleted file of a shell's here-document have no directory.
    return document, str(real.parent) if real.is_file() else os.getcwd()


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is no longer than a spec may be. Raises `UsageError`, `SpecError`."""
    try:
        with open(path, "rb") as file:
            data = file.read(documents.MAX_BYTES + 1)  # one byte more than allowed: the rest of a huge file is not read
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if len(data) > documents.MAX_BYTES:
        raise SpecError(Problem(str(path), f"too long; a spec is at most {documents.MAX_BYTES >> 20} MiB"))
    return data


def with_program(document: Node, kind: str, target: str, place: str) -> Node:
    """The document with this program in place of any other."""
    for other in PROGRAM_KINDS:
        document = documents.overlay(document, other, Node(target if other == kind else None, place, target))
    return document


def tasks_directory(document: Node, base: str) -> str:
    """The working directory of the tasks. The parser reports a wrong value of `workdir`."""
    named = document.value.get("workdir") if isinstance(document.value, dict) else None
    return os.path.join(base, named.value) if named is not None and isinstance(named.value, str) else base


def as_seen_from(directory: str, script: str, kind: str) -> str:
    """A path that was typed in this directory, for tasks that start in `directory`."""
    if os.path.realpath(directory) == os.getcwd() or (kind == "command" and os.sep not in script):
        return script
    return os.path.abspath(script)
