"""The terminal of a test, for a debugger in one of its tasks (`worker/task/calls/debugger.py`)."""

from __future__ import annotations

import os
import select
import socket
import sys

GOES_ON = b"\0"


def find() -> int | None:
    """The terminal of this process, open, whatever pytest has done to stdin and stdout; None: there is none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def attend(terminal: int, debugger: socket.socket) -> bool:
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
