"""Asking a program on this machine something, with a time limit and bounded output: it may hang, die, or be no Python at all."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from worker.records import dataclass

from ..model.endings import describe_return

MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """How a process that was asked has ended. `code` None: it was stopped, for the `reason`."""

    out: str
    err: str
    code: int | None
    reason: str = ""

    @property
    def ending(self) -> str:
        """In words, with its last ones."""
        last = next((line.strip() for line in reversed(self.err.splitlines()) if line.strip()), "")
        how = self.reason if self.code is None else f"it {describe_return(self.code)}"
        return f"{how}: {last[:300]}" if last else how


def ask(argv: Sequence[str], env: Mapping[str, str], limit_s: float, told: bytes = b"") -> Asked:
    """Run a program that knows when to end, with `told` as its input. Its group is killed after `limit_s` seconds, or if it talks too
    much. Raises OSError if it cannot be started."""
    with tempfile.TemporaryFile() as source:  # and not a pipe, whose reader may never read
        source.write(told)
        source.seek(0)
        process = subprocess.Popen(
            argv, env=dict(env), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
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
    return Asked(out, err, None if reason else code, reason)
