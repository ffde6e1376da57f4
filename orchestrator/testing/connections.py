"""The connections between the test's process and the others: messages, and the text of a debugger (`worker/task/calls/debugger.py`)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections import deque
from typing import Any

from worker.task.calls import resident

GOES_ON = b"\0"
"""A task sends this byte when its program goes on after a stop in the debugger."""


class Connection:
    """A connection to the resident of a task, or to a process that the resident has forked."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()
        self.inbox: deque[dict[str, Any]] = deque()
        """The messages that have come and that nobody has read."""
        self.is_open = True
        self.name = ""
        """The name of the process at the other end, and its pid: from its greeting, which is its first message."""
        self.pid = 0

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

    def receive(self) -> None:
        """Put the messages that have come into the inbox."""
        data = b""
        with contextlib.suppress(OSError):
            data = self.sock.recv(1 << 20)
        self.is_open = bool(data)
        self._data += data
        while message := resident.pop_message(self._data):
            self.inbox.append(message)

    def take(self) -> list[dict[str, Any]]:
        """Empty the inbox, and return its messages."""
        return [self.inbox.popleft() for _ in range(len(self.inbox))]


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
