"""The warm process of a host (`worker/host/warm`): started, ended and asked by the interpreter that the tasks will have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker

from ..errors import OrchError, UsageError


def ask(what: str, options: Mapping[str, Any], python: str | None = None) -> dict[str, Any]:
    """What `warm/command.py` answers. Raises `OrchError`, with what it complains of."""
    program = python or sys.executable
    command = [program, "-I", str(Path(worker.__file__).parent / "host" / "warm" / "command.py"), what, json.dumps(options)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise UsageError(f"{program!r} cannot be run: {error.strerror or error}; set --python") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        complaint = (done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"])[-1]
        raise UsageError(f"{program!r} is not a Python that can be used: {complaint}; set --python") from None
    if answer.get("error"):
        raise OrchError(f"warm: {answer['error']}")
    return answer
