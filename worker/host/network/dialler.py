"""The first program of a pod whose controller is in another pod. It dials the controller, so that the controller can start agents here.

It is sent as text, and imports no module of orch. Any Python 3.8 can read it: an older one than agents need is told of by the agent's own
first line. What goes over a connection, which always begins with the token of the run::

    TOKEN {"pod": "a", "address": "10.0.0.7", "number": 3}    then nothing, until the controller sends what BOOT reads: from then on the
                                                              connection is the stdin and stdout of a program in this pod
    TOKEN {"pod": "a", "ended": 3, "code": 0, "said": "..."}  the program of connection 3 has ended; the end of what it wrote to stderr

When a connection has become a program's, the next one is made. ``over`` in place of a program: the run is over.

As the first process of a container it reaps what others leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from typing import IO, Any

BOOT = "import io;exec(io.FileIO(0,closefd=False).readline())"
"""As orchestrator/backends/connection/boot.py has it."""
OVER = b"over\n"
POD, ADDRESS = "DIALLER_POD", "DIALLER_ADDRESS"
"""Variables of this program alone."""
DIAL_S = 5.0
SAID_BYTES = 2000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
"""The pauses between two tries to reach the controller grow by half."""
TELL_TIMES = 3
NOT_STARTED = 126
"""The exit code of a program that could not be started, as in a shell."""


class Dialler:
    """``code = Dialler(...).run()``."""

    def __init__(self, where: tuple[str, int], token: str, pod: str, address: str, before_s: float, after_s: float) -> None:
        """`before_s`: how long the controller is waited for before it was reached; `after_s`: how long after that, without an agent."""
        self._where, self._token, self._pod, self._address = where, token, pod, address
        self._after_s = after_s
        self._limit = time.monotonic() + before_s
        self._line: socket.socket | None = None
        self._number = 0
        self._programs: dict[int, tuple[int, IO[bytes]]] = {}
        """By pid: the number of the connection, and the file that has the program's stderr."""
        self._has_reached = self._is_ending = self._is_over = False
        self._next_at, self._pause_s = 0.0, FIRST_PAUSE_S
        self._woken, wakes = socket.socketpair()
        for end in (self._woken, wakes):
            end.setblocking(False)
        self._wakes = wakes  # kept open
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())

    def run(self) -> int:
        """Returns the exit code: 0 once the run is over, or there is no controller any more; 1 if there never was one; 143 after SIGTERM.

        A pod that exits 0 is done for its Job, which makes no other one: a node that shuts down must not look like that.
        """
        while True:
            self._reap()
            if self._is_ending and not self._programs:
                return 0 if self._is_over else 128 + signal.SIGTERM
            if self._line is None and not self._is_ending:
                if not self._programs and time.monotonic() > self._limit:
                    return 0 if self._has_reached else 1
                if time.monotonic() >= self._next_at:
                    self._dial()
            self._wait()

    def _end(self) -> None:
        """SIGTERM, or the end of the run: the agents end their tasks, and then this program ends."""
        self._is_ending = True
        for pid in list(self._programs):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def _call(self, message: dict[str, Any]) -> socket.socket | None:
        """A connection whose first line has been sent; None: the controller cannot be reached now."""
        try:
            line = socket.create_connection(self._where, DIAL_S)
        except OSError:
            return None
        try:
            line.sendall(f"{self._token} {json.dumps({'pod': self._pod, **message})}\n".encode("ascii"))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            line.settimeout(None)
        except OSError:
            line.close()
            return None
        return line

    def _dial(self) -> None:
        self._number += 1
        self._line = self._call({"address": self._address, "number": self._number})
        if self._line is None:
            self._pause()
        else:
            self._has_reached = True
            self._limit = time.monotonic() + self._after_s

    def _pause(self) -> None:
        """Another try comes later, and each further one later still."""
        self._next_at = time.monotonic() + self._pause_s
        self._pause_s = min(1.5 * self._pause_s, LONGEST_PAUSE_S)

    def _wait(self) -> None:
        """Wait for a signal, for what the controller sends, or for the next try."""
        lines = [self._woken] if self._line is None else [self._woken, self._line]
        pause_s = 1.0 if self._is_ending or self._line is not None else max(0.0, min(1.0, self._next_at - time.monotonic()))
        readable, _, _ = select.select(lines, [], [], pause_s)
        if self._woken in readable:
            with contextlib.suppress(OSError):
                self._woken.recv(4096)
        if self._line in readable:
            self._answer()

    def _answer(self) -> None:
        assert self._line is not None
        line, self._line = self._line, None
        try:
            said = line.recv(len(OVER), socket.MSG_PEEK | socket.MSG_WAITALL)  # a program is longer
        except OSError:
            said = b""
        if said == OVER:
            self._is_over = True
            self._end()
        elif len(said) == len(OVER):
            try:
                self._start(line)
            except OSError as error:  # the node is short of memory, of processes, or of room for files
                self._tell(self._number, NOT_STARTED, f"the pod cannot start a program: {error}\n")
            self._pause_s = FIRST_PAUSE_S
        else:
            self._limit = time.monotonic() + self._after_s
            self._pause()
        line.close()

    def _start(self, line: socket.socket) -> None:
        """Start a program whose stdin and stdout are the connection."""
        said = tempfile.TemporaryFile()  # noqa: SIM115 (`_reap` closes it)
        env = {name: value for name, value in os.environ.items() if name not in (POD, ADDRESS)}
        dups = [(os.POSIX_SPAWN_DUP2, line.fileno(), 0), (os.POSIX_SPAWN_DUP2, line.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        argv = [sys.executable, "-I", "-c", BOOT]
        try:
            pid = os.posix_spawn(sys.executable, argv, env, file_actions=dups, setpgroup=0, setsigdef=(signal.SIGCHLD, signal.SIGTERM))
        except OSError:
            said.close()
            raise
        self._programs[pid] = self._number, said

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._programs:
                number, said = self._programs.pop(pid)
                self._tell(number, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), read_end(said))
                self._limit = max(self._limit, time.monotonic() + self._after_s)

    def _tell(self, number: int, code: int, text: str) -> None:
        """Tell the controller how a program has ended. `text`: what it has said."""
        sys.stderr.write(text)
        for _ in range(TELL_TIMES):
            line = self._call({"ended": number, "code": code, "said": text})
            if line is not None:
                line.close()
                return
            time.sleep(FIRST_PAUSE_S)


def read_end(said: IO[bytes]) -> str:
    with said:
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - SAID_BYTES))
        return said.read().decode(errors="replace")


def main(host: str, port: str, token_file: str, before_s: str, after_s: str) -> None:
    """The program. `POD` and `ADDRESS` say which pod this is."""
    with open(token_file, encoding="ascii") as file:
        token = file.read().strip()
    sys.exit(Dialler((host, int(port)), token, os.environ[POD], os.environ[ADDRESS], float(before_s), float(after_s)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
