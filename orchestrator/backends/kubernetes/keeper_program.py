"""The second program of a controller's pod: keeps the record of the run after the end of the controller, until somebody has fetched it.

It is sent as text, with proof.py next to it. As soon as the controller has ended, however it did, the pods of the run that still dial
are told that the run is over.
Strangers may dial, too: they get nothing, and their time and their number are bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any

if __package__:
    from worker.host.network import proof
else:  # sent as text
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    globals()["proof"] = importlib.import_module("proof")

ALIVE = "alive"
OVER = b'{"over": 0}\n'
LOOK_S = 0.5
LEAVING_S = 5.0
"""How long the pods are told that the run is over when this pod is to end."""
STRANGER_S = 2.0
"""How long a connection may take to prove itself, and to take the answer."""
MOST_GUESTS = 64
"""How many connections may be open at a time. A further one takes the place of the `proof.first_to_go`."""


class Guest:
    """A connection whose proof is still to come, or that has been told that the run is over."""

    def __init__(self, address: str) -> None:
        self.address, self.said, self.until = address, b"", time.monotonic() + STRANGER_S
        self.nonce = os.urandom(proof.NONCE_BYTES)


class Keeper:
    """The server of a record: it answers requests until the record is fetched, or `keep_s` is over."""

    def __init__(self, home: str, token: bytes, port: int, keep_s: float) -> None:
        self._path, self._token, self._port, self._keep_s = os.path.join(home, ALIVE), token, port, keep_s
        self._is_ending = False
        self._guests: dict[socket.socket, Guest] = {}
        signal.signal(signal.SIGTERM, lambda *_: self._end())

    def run(self) -> None:
        """Returns when the record need not be kept any more."""
        while not self._has_ended():
            time.sleep(LOOK_S)
        began = time.monotonic()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", self._port), family=family, backlog=MOST_GUESTS, dualstack_ipv6=both) as server:
            server.setblocking(False)
            while time.monotonic() < began + (LEAVING_S if self._is_ending else self._keep_s):
                self._serve(server)
            for line in list(self._guests):
                self._send_away(line)

    def _end(self) -> None:
        self._is_ending = True

    def _has_ended(self) -> bool:
        """True if there was a controller, and no one holds the lock of its file any more."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return self._is_ending
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _serve(self, server: socket.socket) -> None:
        """Hear for a moment anyone who has come."""
        for line in select.select([server, *self._guests], [], [], LOOK_S)[0]:
            if line is server:
                with contextlib.suppress(OSError):
                    self._receive(*server.accept())
            elif line in self._guests:  # it may just have gone for the one that has come
                self._hear(line)
        for line in [line for line, guest in self._guests.items() if time.monotonic() > guest.until]:
            self._send_away(line)

    def _receive(self, line: socket.socket, peer: tuple[Any, ...]) -> None:
        if len(self._guests) >= MOST_GUESTS:
            self._send_away(proof.first_to_go({line: guest.address for line, guest in self._guests.items()}))
        line.setblocking(False)
        self._guests[line] = guest = Guest(peer[0])
        line.sendall(guest.nonce)

    def _hear(self, line: socket.socket) -> None:
        """Tell a pod of this run that the run is over, once its proof has come whole; nothing to anybody else."""
        guest = self._guests[line]
        missing = proof.GREETING_BYTES - len(guest.said)
        try:
            data = line.recv(missing or 4096)
            guest.said += data[:missing]
            if not data:
                self._send_away(line)
            elif len(data) == missing:
                answer, seal = proof.admit(self._token, guest.nonce, guest.said)
                line.sendall(answer + seal.seal(OVER))
                line.shutdown(socket.SHUT_WR)  # and then the rest is read, which would take the words back otherwise
        except (OSError, ValueError):
            self._send_away(line)

    def _send_away(self, line: socket.socket) -> None:
        del self._guests[line]
        line.close()


def main(home: str, token_file: str, port: str, keep_s: str) -> None:
    with open(token_file, "rb") as file:
        token = file.read().strip()
    Keeper(home, token, int(port), float(keep_s)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
