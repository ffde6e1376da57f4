"""The warm process of a host (`worker/host/warm`): started, ended and asked by the interpreter that the tasks will have."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker.contract

from ..errors import OrchError, UsageError
from . import asking

ANSWER_S = 30.0
"""How long an answer may take: one that is in the way has 2 s to answer, and twice 5 s to end."""
_COMMAND = Path(worker.contract.__file__).parent / "host" / "warm" / "command.py"


def ask(
    what: str,
    options: Mapping[str, Any],
    program: str = sys.executable,
    env: Mapping[str, str] | None = None,
    more_s: float = 0.0,
) -> dict[str, Any]:
    """What `warm/command.py` answers, which may take `more_s` seconds longer than others. Raises `OrchError`, with what it complains of.

    `program`: the Python that runs it. `env`: the spec's, which may hold secrets, and so is told where nobody else can read it.
    """
    try:
        asked = asking.ask(
            [program, "-I", str(_COMMAND), what, json.dumps(options)], os.environ, ANSWER_S + more_s, json.dumps(dict(env or {})).encode()
        )
    except OSError as error:
        raise UsageError(f"{program!r} cannot be run: {error.strerror or error}; set --python") from None
    try:
        answer: dict[str, Any] = json.loads(asked.out)
    except ValueError:
        raise UsageError(f"{program!r} is not a Python that can be used: {asked.ending}; set --python") from None
    if answer.get("error"):
        raise OrchError(f"warm: {answer['error']}")
    return answer
