"""`breakpoint()` in a task: Python's own debugger, at the terminal of the test.

The output of the debugger goes to the test's process (`orchestrator/testing/connections.py`), which sends the lines that the user types.
A zero byte means that the program goes on and reads no line for now.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from . import resident

SIGNAL = signal.SIGTRAP
"""Stops the program at its next line of Python (`Cluster.debug`)."""
NAME = "debugger"
"""The name of a debugger's connection."""
GOES_ON = "\0"
_current: Any = None
_is_busy = False


def prepare(address: str) -> None:
    """Have `breakpoint` and the signal lead to the test's process, which listens at `address`."""

    def stop(frame: FrameType | None) -> None:
        global _current
        if not _is_busy:
            return  # nothing of the user's runs
        if _current is None:
            _current = _connect(address)
        if _current is not None:
            _current.set_trace(frame)

    if sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = lambda *_, **__: stop(sys._getframe(1))
    signal.signal(SIGNAL, lambda _, frame: stop(frame))


def enter() -> None:
    """A function begins."""
    global _is_busy
    _is_busy = True


def leave() -> None:
    """A function has ended: stop tracing."""
    global _is_busy
    _is_busy = False
    if _current is not None:
        sys.settrace(None)
        _current.go_on()


def _connect(address: str) -> Any:
    """A debugger there; None: the test has no terminal."""
    connection = resident.connect(address, NAME)
    if not connection.recv(1):
        print("a breakpoint is passed over: the test has no terminal", file=sys.stderr)
        return None
    import pdb

    class Debugger(pdb.Pdb):
        def go_on(self) -> None:
            print(GOES_ON, end="", file=self.stdout, flush=True)

        def set_continue(self) -> None:
            super().set_continue()
            self.go_on()

    stream = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
    found = Debugger(stdin=stream, stdout=stream, nosigint=True)
    found.use_rawinput = False
    found.prompt = f"({os.environ['ORCH_TASK']}) "
    return found
