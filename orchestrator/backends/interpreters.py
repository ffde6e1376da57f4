"""Which Python runs the tasks of a host: what is started there, what `orch doctor` looks at, and what `orch warm` keeps warm."""

from __future__ import annotations

import os
import sys
from pathlib import PurePosixPath

from ..model.spec import ClusterSpec
from . import Host, load


def of(spec: ClusterSpec, host: Host) -> str:
    """What the host's own `python`, or the spec's, names there: a path starts at the working directory, which has the same path
    everywhere, ``~/`` at that host's home (it stays, if the host is another machine), and a word is for its PATH.

    If none is named it is the Python that runs orch, except on another machine that prepares itself or is sent the code.
    """
    named = next((one for one in spec.backend.hosts if one.name == host.name), None)
    python = (named.python if named else "") or spec.python
    if not python:
        is_like_here = host.is_here or not (spec.backend.code == "ship" or spec.backend.setup or (named and named.setup))
        return sys.executable if is_like_here else "python3"
    if python.startswith("~/"):
        return os.path.expanduser(python) if host.is_here else python
    return str(PurePosixPath(spec.workdir, python)) if "/" in python else python


def of_this_machine(spec: ClusterSpec) -> str:
    """The same for the machine that orch runs on; if it is none of the spec's hosts, as if it were one of which nothing is said."""
    here = next((host for host in load(spec.backend.type).hosts(spec) if host.is_here), Host("", "", sees_run_dir=True))
    return of(spec, here)
