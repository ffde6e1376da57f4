"""Which Python runs the tasks of a host: what is started there, what `orch doctor` looks at, and what `orch warm` keeps warm."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import worker

from ..model.spec import ClusterSpec
from . import Imports, Transport, load


def find(spec: ClusterSpec, named: str = "", *, is_here: bool = True, has_ours: bool = True) -> str:
    """What `named`, or else the spec's `python`, means on a host: a path starts at the working directory, which has the same path
    everywhere, ``~/`` at that host's home (it stays, if the host is another machine), and a word is for its PATH.

    If neither names one: the Python that runs orch where the host has it (`has_ours`), else ``python3``.
    """
    python = named or spec.python
    if not python:
        return sys.executable if is_here or has_ours else "python3"
    if python.startswith("~/"):
        return os.path.expanduser(python) if is_here else python
    return str(PurePosixPath(spec.workdir, python)) if "/" in python else python


def of_this_machine(spec: ClusterSpec) -> str:
    """The Python of the tasks on the machine that orch runs on; if that is none of the spec's hosts, what the spec would mean here."""
    backend = load(spec)
    here = next((host for host in backend.hosts(spec) if host.is_here), None)
    return backend.python_for(spec, here) if here is not None else find(spec)


def transport_here(python: str, spec: ClusterSpec | None = None) -> Transport:
    """An agent on this machine, run by `python`, for the tasks of `spec`."""
    start = str(Path(worker.__file__).parent / "host" / "start_agent.py")
    return Transport((python, "-I", start), imports=_imports_of(spec) if spec is not None else None)


def _imports_of(spec: ClusterSpec) -> Imports | None:
    """What the tasks of this spec import ahead. None: nothing, or nothing is known of the program and the spec names nothing."""
    if not spec.imported_ahead or (spec.preload is None and spec.program.kind == "command"):
        return None
    return Imports(spec.imported_ahead, spec.env, spec.workdir)
