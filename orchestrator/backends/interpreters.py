"""Finds which Python runs the tasks of a host, for agents, `orch doctor` and `orch warm`."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import worker

from ..model.settings import ClusterSpec
from . import Imports, Transport, imagine

TOO_OLD = 96
"""The exit code of orch's program where its Python is too old: the last line on stderr says which Python that is."""


def find(spec: ClusterSpec, named: str = "", *, is_here: bool = True, has_ours: bool = True) -> str:
    """The interpreter on a host: `named`, or else the `python` of the spec.

    A path starts in the working directory, which has the same path everywhere; ``~/`` means the home on this host (another machine resolves
    it there); a word without a slash is looked up on PATH. Without a name: the Python that runs orch if the host has it (`has_ours`), else
    ``python3``.
    """
    python = named or spec.python
    if not python:
        return sys.executable if is_here or has_ours else "python3"
    if python.startswith("~/"):
        return os.path.expanduser(python) if is_here else python
    return str(PurePosixPath(spec.workdir, python)) if "/" in python else python


def of_this_machine(spec: ClusterSpec) -> str:
    """The Python of tasks on this machine, which need not be a host of the spec."""
    here = next((host for host in imagine(spec).hosts if host.is_here), None)
    return here.python if here is not None else find(spec)


def transport_here(python: str, spec: ClusterSpec | None = None) -> Transport:
    """An agent on this machine, run by `python`, for the tasks of `spec`."""
    start = str(Path(worker.__file__).parent / "host" / "start_agent.py")
    imports = None
    # Of a command whose spec names no modules, orch cannot know what it imports.
    if spec is not None and spec.imported_ahead and (spec.preload is not None or spec.program.kind != "command"):
        imports = Imports(spec.imported_ahead, spec.env, spec.workdir, spec.network == "private")
    return Transport((python, "-I", start), imports=imports)
