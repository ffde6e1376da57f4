"""What others ask of the controller of a run: the commands `orch down`, `restart` and `stacks`, and the program that has launched the run.

A request is a line of JSON in the named pipe of the run (record/storage/run_lock.py)::

    {"ask": "stop", "reason": "stopped by orch down", "now": false}
    {"ask": "restart"}
    {"ask": "stacks"}
    {"ask": "signal", "task": "worker-1", "number": 9}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import TERMINATED, UsageError
from .record.storage.run_directory import RunDir
from .signals import Stop

if TYPE_CHECKING:  # a program that only asks has no supervisor
    from .supervision.supervisor import Supervisor

ORPHANED = "the program that launched it has ended"
PARENT_S = 0.2
"""How often a controller checks whether the program that has launched it is still its parent, in seconds."""
PIPE_BYTES = 1024 * 1024
"""One read gets all lines that wait: a pipe holds at most so many bytes without a privilege (pipe(7))."""


def ask(rundir: RunDir, what: str, **more: object) -> bool:
    """Send a request to the controller of a run. Returns False if there is none. Raises `OrchError` if it cannot be reached from here."""
    return rundir.lock.send(json.dumps({"ask": what, **more}).encode() + b"\n")  # shorter than PIPE_BUF: the line is written as a whole


def ask_running(rundir: RunDir, what: str) -> None:
    """`ask` for what only a run that goes on can do. Raises `UsageError` for another."""
    if not ask(rundir, what):
        raise UsageError(f"{rundir.run_id} is not running; orch up starts a new run")


@contextlib.contextmanager
def handle_requests(rundir: RunDir, supervisor: Supervisor) -> Iterator[None]:
    """Act on the requests to the run that this process holds, in the loop that runs now."""
    import asyncio  # here: a command that only asks need not wait for this import

    loop = asyncio.get_running_loop()

    def on_readable(fd: int) -> None:
        for line in os.read(fd, PIPE_BYTES).splitlines():
            _act(supervisor, line)

    pipes = rundir.lock.fds[1:]
    for fd in pipes:
        loop.add_reader(fd, on_readable, fd)
    try:
        yield
    finally:
        for fd in pipes:
            loop.remove_reader(fd)


def _act(supervisor: Supervisor, line: bytes) -> None:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    match request:
        case {"ask": "stop", "reason": str(reason), "now": bool(now)}:
            for _ in range(2 if now else 1):
                supervisor.stop(reason, TERMINATED)
        case {"ask": "restart"}:
            supervisor.restart()
        case {"ask": "stacks"}:
            supervisor.show_stacks()
        case {"ask": "signal", "task": str(task), "number": int(number)} if number in signal.valid_signals():
            supervisor.send_signal(task, number)
        case _:
            supervisor.note(f"a line in the pipe for requests is no request: {line[:80]!r}")


@contextlib.contextmanager
def end_with_parent(owner: int, stop: Stop) -> Iterator[None]:
    """End the run when the process `owner`, the parent of this one, has ended."""
    import asyncio

    async def watch() -> None:
        while os.getppid() == owner:
            await asyncio.sleep(PARENT_S)
        stop(ORPHANED, TERMINATED)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
