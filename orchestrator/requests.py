"""What the program that has launched a run asks of its controller; and the end of both when that program ends.

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
    """What requests are about; see `Supervisor`."""

    def send_signal(self, task: str, number: int) -> None: ...


class Requests:
    """Acts on the requests that come from `fd`, and ends the run when its other end is closed or the process `owner`, our parent, ends.

    Both are needed: the pipe's other end may have been inherited by a process that the owner has forked, and not every kernel has a pidfd.
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

        def hear() -> None:
            data = os.read(self._fd, 64 * 1024)
            if data:
                self._obey(run, data)
            else:
                orphan()

        loop.add_reader(self._fd, hear)
        if pidfd is not None:
            loop.add_reader(pidfd, orphan)
        if os.getppid() != self._owner:
            loop.call_soon(orphan)  # it had ended before we looked, and its pid may be another process's by now
        try:
            yield
        finally:
            for fd in watched:
                loop.remove_reader(fd)
            if pidfd is not None:
                os.close(pidfd)

    def _obey(self, run: Controlled, data: bytes) -> None:
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
