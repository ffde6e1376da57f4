"""The connections between the test's process and the others: messages, and the text of a debugger (`worker/task/calls/debugger.py`)."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from worker.task.calls import resident

GOES_ON = b"\0"
"""A task sends this byte when its program goes on after a stop in the debugger."""


def ignore(message: dict[str, Any] | None) -> None:
    """The `on_message` of a connection whose messages nobody waits for."""


class Connection:
    """A connection to the resident of a task, or to a process that the resident has forked."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()
        self.is_open = True
        self.is_debugger = False
        self.pid = 0
        """The process at the other end, as its greeting names it."""
        self.on_message: Callable[[dict[str, Any] | None], None] = ignore
        """Is called with each message, and with None when the connection has closed."""

    def send(self, message: dict[str, Any], limit_s: float | None = None) -> None:
        """Send a message; nothing happens if the process is gone. Raises TimeoutError if it has not read all after `limit_s` seconds.

        The process has a part of the message then, and can get nothing more.
        """
        try:
            self.sock.settimeout(limit_s)
            resident.send(self.sock, message)
            self.sock.settimeout(None)
        except TimeoutError:
            raise
        except OSError:
            pass

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come."""
        found = []
        try:
            data = self.sock.recv(1 << 20)
        except OSError:
            data = b""
        self.is_open = bool(data)
        self._data += data
        while message := resident.pop_message(self._data):
            found.append(message)
        return found


def open_terminal() -> int | None:
    """The terminal of this process, whatever pytest has done to stdin and stdout; None: there is none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def join_terminal(terminal: int, debugger: socket.socket) -> bool:
    """Carry text between the two until the program goes on (True) or the debugger has gone (False)."""
    sys.stdout.flush()
    while True:
        ready, _, _ = select.select([terminal, debugger.fileno()], [], [])
        if debugger.fileno() in ready:
            try:
                text = debugger.recv(65536)
            except OSError:
                text = b""
            os.write(terminal, text.replace(GOES_ON, b""))
            if not text or text.endswith(GOES_ON):
                return bool(text)
        if terminal in ready:
            typed = os.read(terminal, 65536)
            if not typed:  # Ctrl-D
                typed = b"continue\n"
            debugger.sendall(typed)
