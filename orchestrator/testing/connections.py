"""The connections between the test's process and the others: messages, and the text of a debugger (`worker/task/fixture/debugger.py`)."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from worker.task.fixture import resident

GOES_ON = b"\0"
"""A task sends this byte when its program goes on after a stop in the debugger."""


class Connection:
    """A connection to the resident of a task, or to a process that the resident has forked."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()
        self.is_open = True
        self.name = ""
        """The name of the process at the other end, and its pid: from its greeting, which is its first message."""
        self.pid = 0
        self.on_message: Callable[[dict[str, Any]], object] = lambda message: None
        """Called with each message after the greeting."""

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

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come."""
        try:
            data = self.sock.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_open = bool(data)
        self._data += data
        messages = []
        while message := resident.pop_message(self._data):
            messages.append(message)
        return messages


def join_terminal(debugger: socket.socket, first: bytes) -> bool:
    """Send `first`, and carry text between the terminal and a debugger until the program goes on (True).

    False: the debugger has gone, or this process has no terminal. pytest may have changed stdin and stdout, so these are not used.
    """
    sys.stdout.flush()
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            debugger.sendall(first)
            while True:
                ready, _, _ = select.select([terminal.fileno(), debugger.fileno()], [], [])
                if debugger.fileno() in ready:
                    text = debugger.recv(65536)
                    terminal.write(text.replace(GOES_ON, b""))
                    if not text or text.endswith(GOES_ON):
                        return bool(text)
                if terminal.fileno() in ready:
                    debugger.sendall(terminal.read(65536) or b"continue\n")  # nothing: Ctrl-D
    except OSError:
        return False
