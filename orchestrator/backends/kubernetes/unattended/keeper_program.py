"""The second program of a controller's pod: keeps the record of the run after the end of the controller, until somebody has fetched it.

It is sent as text. As soon as the controller has ended, however it did, the pods of the run that still dial are told that the run is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import signal
import socket
import sys
import time

ALIVE = "alive"
OVER = b"over\n"
TOKEN_BYTES = 64
LOOK_S = 0.5
LEAVING_S = 5.0
"""How long the pods are told that the run is over when this pod is to end."""
STRANGER_S = 2.0


class Keeper:
    """``Keeper(...).run()``."""

    def __init__(self, home: str, token: bytes, port: int, keep_s: float) -> None:
        self._path, self._token, self._port, self._keep_s = os.path.join(home, ALIVE), token, port, keep_s
        self._is_ending = False
        signal.signal(signal.SIGTERM, lambda *_: self._end())

    def run(self) -> None:
        """Returns when the record need not be kept any more."""
        while not self._has_ended():
            time.sleep(LOOK_S)
        began = time.monotonic()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", self._port), family=family, backlog=64, dualstack_ipv6=both) as server:
            server.settimeout(LOOK_S)
            while time.monotonic() < began + (LEAVING_S if self._is_ending else self._keep_s):
                with contextlib.suppress(OSError):
                    self._dismiss(server.accept()[0])

    def _end(self) -> None:
        self._is_ending = True

    def _has_ended(self) -> bool:
        """Whether there was a controller, and nobody holds the lock of its file any more."""
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

    def _dismiss(self, line: socket.socket) -> None:
        """Tell a pod of this run that the run is over; nothing to anybody else."""
        with line:
            line.settimeout(STRANGER_S)
            if hmac.compare_digest(line.recv(TOKEN_BYTES, socket.MSG_WAITALL), self._token):
                line.sendall(OVER)
                line.shutdown(socket.SHUT_WR)
                line.recv(4096)  # what is not read would take the words back


def main(home: str, token_file: str, port: str, keep_s: str) -> None:
    """The program."""
    with open(token_file, "rb") as file:
        token = file.read().strip()
    Keeper(home, token, int(port), float(keep_s)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
