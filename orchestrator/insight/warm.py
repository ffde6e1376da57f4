"""The warm process of a host (`worker/host/warm`): started, ended and asked by the interpreter that the tasks will have."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import worker.protocol.messages

from ..errors import OrchError, UsageError
from ..model.cause.exit_status import describe_answer

ANSWER_S = 30.0
"""How long an answer may take: one that is in the way has 2 s to answer, and twice 5 s to end."""
MOST_BYTES = 1 << 20
"""More than any answer has."""
_COMMAND = Path(worker.protocol.messages.__file__).parents[1] / "host" / "warm" / "command.py"


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
        argv = [program, "-I", str(_COMMAND), what, json.dumps(options)]
        out, ending = _run(argv, json.dumps(dict(env or {})).encode(), ANSWER_S + more_s)
    except OSError as error:
        raise UsageError(f"{program!r} cannot be run: {error.strerror or error}; set --python") from None
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        raise UsageError(f"{program!r} is not a Python that can be used: {ending}; set --python") from None
    if answer.get("error"):
        raise OrchError(f"warm: {answer['error']}")
    return answer


def _run(argv: Sequence[str], told: bytes, limit_s: float) -> tuple[str, str]:
    """What a program says that is `told` something on its stdin, and how it has ended, in words.

    It may hang, die, or be no Python at all: its group is killed after `limit_s` seconds, or if it talks too much. Raises OSError if
    it cannot be started.
    """
    with tempfile.TemporaryFile() as source:  # and not a pipe, whose reader may never read
        source.write(told)
        source.seek(0)
        process = subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    reason = ""
    with process, selectors.DefaultSelector() as selector:
        heard = {stream: bytearray() for stream in (process.stdout, process.stderr)}
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ)
        began = time.monotonic()
        try:
            while selector.get_map() and not reason:
                ready = selector.select(max(0.0, began + limit_s - time.monotonic()))
                if not ready:
                    reason = f"it has not answered for {limit_s:g} s"
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    heard[key.fileobj] += data  # type: ignore[index]
                    if not data:
                        selector.unregister(key.fileobj)
                    elif sum(map(len, heard.values())) > MOST_BYTES:
                        reason = "it never stops talking"
        finally:
            if reason or selector.get_map():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        out, err = (bytes(heard[stream]).decode(errors="replace") for stream in heard)
        code = process.wait()
    return out, describe_answer(err, None if reason else code, reason)
