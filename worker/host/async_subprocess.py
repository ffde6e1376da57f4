"""Helper programs that run while the loop goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from ..protocol.messages import ProgramEnded
from .loop import Loop
from .processes import process_groups

MOST_BYTES = 1 << 20
END_LOOK_S, MOST_END_LOOK_S = 0.002, 0.1
"""The first and the longest pause between two looks for the end of a program that has closed its streams; it usually ends at once."""
END_S = 1.0
"""How long `end` waits after SIGKILL. A program in state D, such as behind a GPU's driver that hangs, does not end."""


class Question:
    """Runs a helper program without blocking the loop.

    The program and its group are killed after `limits[0]` seconds without a first line on stdout, after `limits[1]` in all, or above
    `MOST_BYTES` of output, and are not waited for then. `on_ended` is called once, unless `end` is called before. Raises OSError if the
    program cannot be started.
    """

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        env: Mapping[str, str],
        limits: tuple[float, float],
        on_ended: Callable[[ProgramEnded], None],
    ) -> None:
        self._loop, self._on_ended = loop, on_ended
        self._process = subprocess.Popen(
            argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout, self._process.stderr
        self._received = {self._out: bytearray(), self._err: bytearray()}
        self._open = set(self._received)
        self._is_over = False
        self.left: set[int] = set()
        """The processes that were there when it was stopped: SIGKILL has been sent to them, and may not end them."""
        for stream in self._received:
            loop.on_readable(stream, lambda stream=stream: self._read(stream))  # type: ignore[misc]
        first_s, then_s = limits
        loop.after(first_s, lambda: self._stop_if_silent(first_s))
        loop.after(then_s, lambda: self._stop(f"it has not answered for {then_s:g} s"))

    def _stop_if_silent(self, seconds: float) -> None:
        if b"\n" not in self._received[self._out]:
            self._stop(f"it has not answered for {seconds:g} s")

    def _read(self, stream: IO[bytes]) -> None:
        if stream not in self._open:
            return  # the program was stopped in this same wake-up
        data = os.read(stream.fileno(), 65536)
        self._received[stream] += data
        if not data:
            self._forget(stream)
            if not self._open:
                self._await_end(END_LOOK_S)
        elif sum(map(len, self._received.values())) > MOST_BYTES:
            self._stop("it never stops talking")

    def _forget(self, stream: IO[bytes]) -> None:
        self._open.discard(stream)
        self._loop.forget(stream)
        stream.close()

    def _await_end(self, again_s: float) -> None:
        self.poll()
        if self._process.returncode is None and not self._is_over:
            self._loop.after(again_s, lambda: self._await_end(min(2 * again_s, MOST_END_LOOK_S)))
        elif not self._is_over:
            self._finish("")

    def poll(self) -> None:
        """Reap the program if it has ended; called before the agent reaps all other children."""
        self._process.poll()

    def _stop(self, reason: str) -> None:
        if not self._is_over:
            process_groups.signal_group(self._process.pid, signal.SIGKILL)  # also its children, which may keep a stream open
            for stream in tuple(self._open):
                self._forget(stream)
            self.left = process_groups.members(self._process.pid)
            self._finish(reason)

    def _finish(self, reason: str) -> None:
        self._is_over = True
        out, err = (bytes(self._received[stream]).decode(errors="replace") for stream in (self._out, self._err))
        self._on_ended(ProgramEnded(out, err, None if reason else self._process.returncode, reason))

    def end(self) -> None:
        """Kill the program; its result is needed no more."""
        self._is_over = True
        if self._process.returncode is None:
            process_groups.signal_group(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
