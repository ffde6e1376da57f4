"""The program of a node whose controller is on another one. It dials the controller, so that the controller can start agents here.

A pod gets it as text, with proof.py next to it: it imports no module of orch, and any Python 3.8 can read it. An older one than agents need
is told of by the agent's own first line. What goes over a connection, after both ends have proved themselves (proof.py)::

    {"node": "a", "address": "10.0.0.7", "number": 3, ...}   then the controller sends lines, until one is `START`: from then on the
                                                             connection is the stdin and stdout of a program here, which reads BOOT first
    {"node": "a", "ended": 3, "code": 0, "said": "..."}      the program of connection 3 has ended; the end of what it wrote to stderr
    {"node": "a", "signal": 15}                              this node got SIGTERM, and the run shall end

When a connection has become a program's, the next one is made. The other lines of a controller: {"over": CODE}, the run is over;
{"refused": WHY, "code": CODE}; {"state": TEXT}, what the run waits for.

As the first process of a container it reaps what others leave.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

if __package__:
    from . import proof
else:  # sent as text
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    globals()["proof"] = importlib.import_module("proof")

BOOT = "import io;exec(io.FileIO(0,closefd=False).readline())"
"""As orchestrator/backends/connection/boot.py has it."""
START = b'{"start": true}\n'
POD, ADDRESS = "DIALLER_POD", "DIALLER_ADDRESS"
"""Variables of this program alone."""
DIAL_S = 5.0
SAID_BYTES = 2000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
"""The pauses between two tries to reach the controller grow by half."""
TELL_TIMES = 3
FLUSH_S = 5.0
"""How long what a program has written may take to leave, after its end."""
NOT_STARTED = 126
"""The exit code of a program that could not be started, as in a shell."""
READ_BYTES = 1 << 16


class Relay:
    """Carries the bytes between a program on this node and the controller: by a thread for each way, so that none waits for the other."""

    def __init__(self, line: socket.socket, seal: proof.Seal, first: Iterable[bytes]) -> None:
        """`first`: what of the program's orders has come already."""
        self._line, self._seal = line, seal
        self._here, self.program = socket.socketpair()
        """`program`: the end that becomes the program's stdin and stdout."""
        self._up = threading.Thread(target=self._send, daemon=True)
        self._down = threading.Thread(target=self._receive, args=(first,), daemon=True)

    def begin(self) -> None:
        """The program has its end: this process keeps none."""
        self.program.close()
        self._up.start()
        self._down.start()

    def end(self) -> None:
        """The program has ended: what it has written leaves."""
        self._up.join(FLUSH_S)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._here.recv(READ_BYTES):
                self._line.sendall(self._seal.seal(data))
        _shut(self._line, socket.SHUT_RDWR)
        _shut(self._here, socket.SHUT_RDWR)

    def _receive(self, first: Iterable[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for part in first:
                self._here.sendall(part)
            while data := self._line.recv(READ_BYTES):
                for part in self._seal.open(data):
                    self._here.sendall(part)
        _shut(self._here, socket.SHUT_WR)


def keep_alive(line: Any) -> None:
    """Let the kernel find out that the other end of a connection is gone, if the connection only waits."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _shut(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)


class Dialler:
    """``code = Dialler(...).run()``."""

    def __init__(
        self,
        find: Callable[[], tuple[list[tuple[str, int]], bytes]],
        node: str,
        facts: Mapping[str, Any],
        before_s: float,
        after_s: float,
        ends_run: bool = False,
        say: Callable[[str], None] = lambda text: None,
        say_s: float = math.inf,
    ) -> None:
        """`find`: the addresses of the controller, which are tried in this order, and the secret; raises OSError while they are not known.
        `facts`: what else the controller is told.

        `before_s`: how long the controller is waited for before it was reached; `after_s`: how long after that, without an agent.
        `ends_run`: SIGTERM ends the run, not only this node. `say` gets lines for people, every `say_s` why there is no controller yet.
        """
        self._find, self._node, self._facts = find, node, facts
        self._after_s, self._ends_run, self._say, self._say_s = after_s, ends_run, say, say_s
        self._best: tuple[str, int] | None = None
        """The address that was reached last."""
        self._say_at = time.monotonic() + say_s
        self._limit = time.monotonic() + before_s
        self._line: socket.socket | None = None
        self._number = 0
        self._programs: dict[int, tuple[int, IO[bytes], Relay]] = {}
        """By pid: the number of the connection, the file that has the program's stderr, and what carries its bytes."""
        self.trouble = ""
        """Why the controller could not be reached; or why it wants nothing of this node."""
        self.has_reached = self._is_ending = self.got_signal = self.is_refused = False
        self.over: int | None = None
        """The exit code of the run, which is over; None: no one has said so."""
        self._next_at, self._pause_s = 0.0, FIRST_PAUSE_S
        self._woken, wakes = socket.socketpair()
        for end in (self._woken, wakes):
            end.setblocking(False)
        self._wakes = wakes  # kept open
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._tell_of_signal() if self._ends_run else self._end())

    def run(self) -> int:
        """Returns the exit code: that of the run once it is over; 0 if there is no controller any more; 1 if there never was one, or if it
        refuses this node; 143 after SIGTERM.

        A pod that exits 0 is done for its Job, which makes no other one: a node that shuts down must not look like that.
        """
        while True:
            self._reap()
            if self._is_ending and not self._programs:
                return 128 + signal.SIGTERM if self.over is None else self.over
            if self._line is None and not self._is_ending:
                if not self._programs and time.monotonic() > self._limit:
                    return 0 if self.has_reached else 1
                if time.monotonic() >= self._next_at:
                    self._dial()
            self._wait()

    def _end(self) -> None:
        """SIGTERM, or the end of the run: the agents end their tasks, and then this program ends."""
        self._is_ending = True
        for pid in list(self._programs):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def _tell_of_signal(self) -> None:
        """The controller ends the run, and tells of its end. It does the same for all nodes: one of them suffices."""
        if not self.has_reached or self.got_signal:
            self._end()
        self.got_signal = True
        threading.Thread(target=self._tell, args=({"signal": int(signal.SIGTERM)},), daemon=True).start()

    def _call(self, message: dict[str, Any]) -> tuple[socket.socket, proof.Seal] | None:
        """A connection whose first line has been sent; None: the controller cannot be reached now."""
        try:
            found, secret = self._find()
        except OSError as error:
            self.trouble = str(error)
            return None
        troubles = []
        for where in sorted(found, key=lambda each: each != self._best):
            line = None
            try:
                line = socket.create_connection(where, DIAL_S)
                seal = proof.meet(line, secret)
                line.sendall(seal.seal(json.dumps({"node": self._node, **message}).encode("ascii") + b"\n"))
                keep_alive(line)
                line.settimeout(None)
                self._best = where
                return line, seal
            except (OSError, ValueError) as error:
                troubles.append(f"{where[0]}:{where[1]}: {getattr(error, 'strerror', None) or error}")
                if line is not None:
                    line.close()
        self.trouble = "; ".join(troubles)
        return None

    def _dial(self) -> None:
        self._number += 1
        called = self._call({**self._facts, "number": self._number})
        if called is None:
            self._pause()
            if time.monotonic() > self._say_at:
                self._say(f"node 0 is not reached yet: {self.trouble}")
                self._say_at += self._say_s
        else:
            self._line, self._seal = called
            self.has_reached, self._say_at = True, math.inf
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
        line = self._line
        try:
            data = line.recv(READ_BYTES)
            parts = self._seal.open(data)
            for part in parts:
                if part == START:
                    self._line = None
                    self._pause_s = FIRST_PAUSE_S
                    self._start(line, parts)
                    return
                self._hear(json.loads(part))
        except (OSError, ValueError):
            data = b""
        if not data or self._is_ending:
            self._line = None
            line.close()
            self._limit = time.monotonic() + self._after_s
            self._pause()

    def _hear(self, said: dict[str, Any]) -> None:
        if "over" in said:
            self.over = said["over"]
            self._end()
        elif "refused" in said:
            self.trouble, self.over, self.is_refused = said["refused"], said.get("code", 1), True
            self._end()
        elif "state" in said:
            self._say(said["state"])

    def _start(self, line: socket.socket, first: Iterable[bytes]) -> None:
        """Start a program whose stdin and stdout are the connection."""
        try:
            self._spawn(Relay(line, self._seal, list(first)))
        except OSError as error:  # the node is short of memory, of processes, or of room for files
            line.close()
            self._tell_end(self._number, NOT_STARTED, f"the node cannot start a program: {error}\n")

    def _spawn(self, relay: Relay) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 (`_reap` closes it)
        env = {name: value for name, value in os.environ.items() if name not in (POD, ADDRESS)}
        end = relay.program.fileno()
        dups = [(os.POSIX_SPAWN_DUP2, end, 0), (os.POSIX_SPAWN_DUP2, end, 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        signals = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        argv = [sys.executable, "-I", "-c", BOOT]
        pid = os.posix_spawn(sys.executable, argv, env, file_actions=dups, setpgroup=0, setsigdef=signals, setsigmask=())
        self._programs[pid] = self._number, said, relay
        relay.begin()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._programs:
                number, said, relay = self._programs.pop(pid)
                relay.end()
                with said:
                    said.seek(max(0, said.seek(0, os.SEEK_END) - SAID_BYTES))
                    text = said.read().decode(errors="replace")
                self._tell_end(number, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), text)
                self._limit = max(self._limit, time.monotonic() + self._after_s)

    def _tell_end(self, number: int, code: int, text: str) -> None:
        """Tell the controller how a program has ended. `text`: what it has said."""
        sys.stderr.write(text)
        self._tell({"ended": number, "code": code, "said": text})

    def _tell(self, message: dict[str, Any]) -> None:
        for _ in range(TELL_TIMES):
            called = self._call(message)
            if called is not None:
                called[0].close()
                return
            time.sleep(FIRST_PAUSE_S)


def main(host: str, port: str, token_file: str, before_s: str, after_s: str) -> None:
    """The program of a pod. `POD` and `ADDRESS` say which pod this is."""
    with open(token_file, "rb") as file:
        token = file.read().strip()
    facts = {"address": os.environ[ADDRESS]}
    code = Dialler(lambda: ([(host, int(port))], token), os.environ[POD], facts, float(before_s), float(after_s)).run()
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
