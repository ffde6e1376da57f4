"""Helper programs that run while the loop goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ...machine.memfd import keep_in_memory
from ...protocol.messages import ProgramEnded
from . import process_groups
from .helpers import LOOK_S
from .loop import Loop

MOST_BYTES = 1 << 20
"""What is read of each stream of a helper program."""
LONGEST_FILE = 1 << 24
"""The longest file that a helper program may write, its output included. Without a limit its output could fill the memory."""
END_S = 1.0
"""How long `end` waits after SIGKILL. A program in state D, such as behind a GPU's driver that hangs, does not end."""


class Question:
    """Runs a helper program without blocking the loop.

    The program and its group are killed after `limit_s` seconds, and are not waited for then. `on_ended` is called once, unless `end` is
    called before; also if the program cannot be started.
    """

    def __init__(
        self, loop: Loop, argv: Sequence[str], env: Mapping[str, str], limit_s: float, on_ended: Callable[[ProgramEnded], None]
    ) -> None:
        self._loop, self._on_ended = loop, on_ended
        self._is_over = False
        self.pid = 0
        self._left: set[int] = set()
        """The processes that were there when it was stopped: SIGKILL has been sent to them, and may not end them."""
        self._process: subprocess.Popen[bytes] | None = None
        # Not above the present limit (ulimit -f), which root alone may raise.
        longest = min({LONGEST_FILE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]} - {resource.RLIM_INFINITY})
        self._streams = [os.fdopen(keep_in_memory(b""), "rb") for _ in ("stdout", "stderr")]
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._streams[0],
                stderr=self._streams[1],
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest)),
            )
        except (OSError, ValueError) as error:
            reason = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
            loop.after(0.0, lambda: self._finish(None, reason))
        else:
            self.pid = self._process.pid
            loop.after(LOOK_S, self._look)
            loop.after(limit_s, lambda: self._stop(f"it has not answered for {limit_s:g} s"))

    @property
    def pids(self) -> set[int]:
        """The processes that have not ended: of a program that was stopped, those that it had started, too."""
        return {self.pid} - {0} if not self._is_over else self._left

    def poll(self) -> None:
        """Notice the end of the program."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._finish(code, "")

    def _look(self) -> None:
        self.poll()
        if not self._is_over:
            self._loop.after(LOOK_S, self._look)

    def _stop(self, reason: str) -> None:
        if not self._is_over and self._process is not None:
            process_groups.signal_group(self._process.pid, signal.SIGKILL)
            self._left = process_groups.members(self._process.pid)
            self._finish(None, reason)

    def _finish(self, code: int | None, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        out, err = (os.pread(stream.fileno(), MOST_BYTES, 0).decode(errors="replace") for stream in self._streams)
        self._close()
        self._on_ended(ProgramEnded(out, err, code, reason))

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()

    def end(self) -> None:
        """Kill the program; its result is needed no more."""
        self._is_over = True
        self._close()
        if self._process is not None and self._process.returncode is None:
            process_groups.signal_group(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
