"""The requests of the program that has launched a run, and the end of the run when that program ends.

The requests come through a pipe, the controller's stdin, one JSON object a line::

    {"ask": "stop", "now": false}
    {"ask": "restart"}
    {"ask": "stacks"}
    {"ask": "signal", "task": "worker-1", "number": 9}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, Protocol

from .errors import TERMINATED
from .signals import Steered

ORPHANED = "the program that launched it has ended"
STOPPED = "stopped by the program that launched it"


class Controlled(Steered, Protocol):
    """The part of a `Supervisor` that requests use."""

    def send_signal(self, task: str, number: int) -> None: ...


class Requests:
    """Acts on the requests that come from `fd`. Ends the run when the other end is closed, or when the process `owner`, the parent, ends.

    Both are needed: a process that the owner has forked may hold the other end of the pipe, and not every kernel has a pidfd.
    """

    def __init__(self, fd: int, owner: int) -> None:
        self._fd, self._owner = fd, owner
        self._rest = b""

    @contextlib.contextmanager
    def __call__(self, run: Controlled) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        pidfd = _open_pidfd(self._owner)
        watched = [self._fd] + ([pidfd] if pidfd is not None else [])

        def orphan() -> None:
            for fd in watched:
                loop.remove_reader(fd)
            run.stop(ORPHANED, TERMINATED)

        def on_readable() -> None:
            data = os.read(self._fd, 64 * 1024)
            if data:
                self._on_data(run, data)
            else:
                orphan()

        loop.add_reader(self._fd, on_readable)
        if pidfd is not None:
            loop.add_reader(pidfd, orphan)
        if os.getppid() != self._owner:
            loop.call_soon(orphan)  # the owner has ended already, and another process may have its pid by now
        try:
            yield
        finally:
            for fd in watched:
                loop.remove_reader(fd)
            if pidfd is not None:
                os.close(pidfd)

    def _on_data(self, run: Controlled, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            match request["ask"]:
                case "stop":
                    run.stop(STOPPED, TERMINATED)
                    if request["now"]:
                        run.stop(STOPPED, TERMINATED)
                case "restart":
                    run.restart()
                case "stacks":
                    run.show_stacks()
                case "signal":
                    run.send_signal(request["task"], request["number"])


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended; None where the kernel has none, or the process has ended."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
