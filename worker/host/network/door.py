"""Finds where the controller of an agent comes back after the channel was cut: a socket of this user, in the agent's own directory.

The agent does not know whether a controller whose channel ended still lives, unless a goodbye came (`replay.goodbye`). So the agent waits,
but never longer than for a silent controller (`Hello.lost_after_s`).
"""

from __future__ import annotations

import contextlib
import os
import socket

from ..processes.loop import Loop
from .link import Link

NAME = "door"
MOST_BYTES = 256


class Door:
    """Listens for `return_program`, from `Hello` on. A return replaces the channel of the agent, who may not know of the cut."""

    def __init__(self, loop: Loop, link: Link, directory: str, secret: str) -> None:
        """Raises OSError, as where the path is too long for a socket."""
        self._loop, self._link, self._secret = loop, link, secret
        self.path = os.path.join(directory, NAME)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(self.path)
            os.chmod(self.path, 0o600)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._guest: socket.socket | None = None
        """The connection of the program whose channel is in use. That program ends with the connection."""
        loop.on_readable(self._socket, self._on_knock)

    def _on_knock(self) -> None:
        with contextlib.suppress(OSError):
            guest, _ = self._socket.accept()
            guest.setblocking(False)
            self._loop.on_readable(guest, lambda: self._admit(guest))

    def _admit(self, guest: socket.socket) -> None:
        self._loop.forget(guest)
        import hmac  # an agent whose channel holds has no use for it

        fds: list[int] = []
        try:
            said, fds, _, _ = socket.recv_fds(guest, MOST_BYTES, 3)
            secret, _, received = said.partition(b" ")
            if len(fds) != 3 or not hmac.compare_digest(secret, self._secret.encode()):
                raise ValueError("no controller of this agent")
            self._link.take_over(fds, int(received))
            self.leave()
            self._guest = guest
        except (OSError, ValueError):
            guest.close()
        finally:
            for fd in fds:
                os.close(fd)

    def leave(self) -> None:
        """The channel in use has ended: so does the program that has brought it."""
        if self._guest is not None:
            self._guest.close()
            self._guest = None

    def close(self) -> None:
        """Let no one in any more."""
        if self._socket.fileno() >= 0:
            self._loop.forget(self._socket)
            self._socket.close()
