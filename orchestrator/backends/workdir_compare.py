"""A shared working directory: what hosts compare, to know that they have the one where orch runs."""

from __future__ import annotations

import os
from pathlib import Path

from worker.protocol.messages import Program, WorkdirState
from worker.workdir import read_state


def describe(workdir: str, program: Program) -> WorkdirState:
    """What `workdir` is like here, where orch runs."""
    return read_state(workdir, _target(Path(workdir), program))


def _target(root: Path, program: Program) -> str:
    """The program's own file as the hosts are to look for it; empty if it is none of this directory."""
    if program.kind == "module":
        module = program.target.replace(".", "/")
        return next((file for file in (f"{module}.py", f"{module}/__main__.py") if (root / file).is_file()), "")
    if program.kind not in ("script", "command") or (program.kind == "command" and "/" not in program.target):
        return ""
    path = os.path.relpath(root / program.target, root)
    if not path.startswith(".."):
        return path
    return os.path.abspath(root / program.target) if program.kind == "script" else ""  # each host has its own /bin/sh
