"""Keeps the modules that a run has imported for the next one, if the user wants this always: ORCH_WARM=auto, or ``warm: auto`` in a file.

`orch warm start` in the background, after the run: no run waits for it, and the next one is forked from its process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import worker
from worker.host.forkserver import warm_socket

from ..errors import OrchError
from ..model.settings import ClusterSpec
from ..model.settings import document as documents

VARIABLE = "ORCH_WARM"
FILE = "orch/settings.yaml"
_PROGRAM = Path(worker.__file__).parents[1] / "orchestrator" / "__main__.py"


def is_wanted(env: Mapping[str, str]) -> bool:
    """True if the user wants this. The variable wins over the user's own file, `$XDG_CONFIG_HOME/orch/settings.yaml`."""
    if sys.platform != "linux":
        return False
    if VARIABLE in env:
        return env[VARIABLE] == "auto"
    path = Path(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), FILE)
    with contextlib.suppress(OSError, OrchError):  # most users have no such file
        settings = documents.read(path.read_bytes(), str(path)).value
        if isinstance(settings, dict) and "warm" in settings:
            return bool(settings["warm"].value == "auto")
    return False


def keep(spec: ClusterSpec, spec_file: Path, env: Mapping[str, str]) -> str:
    """Start to import what a run of this spec has imported, unless there is a warm process. Returns a line, or an empty text."""
    if warm_socket.is_there(env):
        return ""
    try:
        subprocess.Popen(
            [sys.executable, str(_PROGRAM), "warm", "start", "--file", str(spec_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        return f"{', '.join(spec.imported_ahead)} cannot be kept for the next run: {error.strerror or error}"
    return f"warm: auto: {', '.join(spec.imported_ahead)} is imported for the next run; orch warm stop gives the memory back"
