"""The sources of a spec: the file, and a program that the caller names instead of the program in the file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from .errors import Problem, SpecError, UsageError
from .model.settings import PROGRAM_KINDS
from .model.settings import document as documents
from .model.settings.backend_sections import misplaced
from .model.settings.document import Node

SPEC = "orch.yaml"
HOME = ".orch"


def read_file(name: str | None) -> tuple[Node, str]:
    """The document of a file, and the directory in which its paths start. None: the nearest `orch.yaml`, if there is one."""
    if name == "-":  # as kubectl and docker compose have it
        return documents.read(_first_bytes(sys.stdin.buffer, "stdin"), "stdin"), os.getcwd()
    path = Path(name) if name is not None else nearest(SPEC)
    if path is None:
        return documents.empty(), os.getcwd()
    document = documents.read(read_whole(path, f"orch init {path} writes one"), str(path))
    real = path.resolve()
    # A pipe, such as -f <(...), and the deleted file of a shell's here-document have no directory.
    return document, str(real.parent) if real.is_file() else os.getcwd()


def home_of_new_run(file: str | None) -> str:
    """The directory of the runs for a run that is made: next to the nearest `orch.yaml`, or here. `file`: the value of -f, or none."""
    found = None if file else nearest(SPEC)
    return str(found.with_name(HOME)) if found else HOME


def nearest(name: str) -> Path | None:
    """The file or directory of this name in this directory, or in the nearest directory above that belongs to this user.

    The path is relative, as a user would type the path: ``orch.yaml``, ``../orch.yaml``. The search ends at a directory of another user,
    whose file could start any program (as git's safe.directory), and at the directory in ORCH_CEILING.
    """
    above = Path()
    for directory in (here := Path.cwd(), *here.parents):
        with contextlib.suppress(OSError):
            if directory != here and (directory.stat().st_uid != os.geteuid() or str(directory) == os.environ.get("ORCH_CEILING")):
                return None
            if (directory / name).exists():
                return above / name
        above /= ".."
    return None


def read_whole(path: Path, fix: str = "") -> bytes:
    """The bytes of a file that is no longer than a spec may be. `fix`: if there is none. Raises `UsageError`, `SpecError`."""
    try:
        with open(path, "rb") as file:
            return _first_bytes(file, str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix if isinstance(error, FileNotFoundError) else "") from None


def _first_bytes(file: BinaryIO, name: str) -> bytes:
    data = file.read(documents.MAX_BYTES + 1)  # one byte more than allowed: the rest of a huge file is not read
    if len(data) > documents.MAX_BYTES:
        raise SpecError(Problem(name, f"too long; a spec is at most {documents.MAX_BYTES >> 20} MiB"))
    return data


def with_program(document: Node, kind: str, target: str, place: str) -> Node:
    for other in PROGRAM_KINDS:
        document = documents.overlay(document, other, Node(target if other == kind else None, place, target))
    return document


def chooses_backend(path: str | Sequence[str]) -> bool:
    """True if a path is that of the backend's type. Of the values of one source, this one is applied first."""
    return (path if isinstance(path, str) else ".".join(path)) in ("backend", "backend.type")


def with_value(document: Node, path: str | Sequence[str], value: Node) -> Node:
    """The document with a value from a stronger source. A backend that is chosen there drops the keys of the document that it lacks."""
    if chooses_backend(path) and isinstance(value.value, str):
        for key, _ in misplaced(value.value):
            if documents.has(document, ["backend", key]):
                document = documents.overlay(document, ["backend", key], Node(None, value.place))
    return documents.overlay(document, path, value)


def tasks_directory(document: Node, base: str) -> str:
    """The working directory of the tasks. The parser reports a wrong value of `workdir`."""
    named = document.value.get("workdir") if isinstance(document.value, dict) else None
    return os.path.join(base, named.value) if named is not None and isinstance(named.value, str) else base


def as_seen_from(directory: str, script: str, kind: str) -> str:
    """A path that was typed in this directory, for tasks that start in `directory`."""
    if os.path.realpath(directory) == os.getcwd() or (kind == "command" and os.sep not in script):
        return script
    return os.path.abspath(script)
