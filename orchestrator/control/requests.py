"""Defines what others ask of the controller of a run: the commands `orch down`, `restart` and `stacks`, and the program that has launched
the run.

A request is a line of JSON in the named pipe of the run (record/run_lock.py), or, from another machine than the controller's, in
its file `requests` (record/engine_files.py)::

    {"ask": "stop", "reason": "stopped by orch down", "now": false, "save": false}
    {"ask": "restart"}
    {"ask": "stacks"}
    {"ask": "signal", "task": "worker-1", "number": 9}
    {"ask": "profile", "tasks": ["worker-0", "ps"], "id": "2026_11_24_18_30_05", "seconds": 2.0, "at_risk": false}
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import INTERRUPTED, TERMINATED, OrchError, UsageError
from ..model.policy import restarts
from ..model.state.cluster import Phase
from ..record.follower import Follower
from ..record.run_directory import RunDir
from ..record.run_progress import read_cluster
from ..record.run_store import no_tasks_yet

if TYPE_CHECKING:  # a program that only asks has no supervisor
    from .supervisor import Supervisor

ORPHANED = "the program that launched it has ended"
PARENT_S = 0.2
"""How often a controller checks whether the program that has launched it is still its parent, in seconds."""
FILE_S = 1.0
"""How often the file of requests is read, in seconds."""
READ_BYTES = 4096
"""The bytes of requests that are read in one turn of the loop: anyone who writes without end must not keep the run from its other work."""
LONGEST = 4096
"""The longest request in bytes (PIPE_BUF): what is longer is none."""
LONGEST_PROFILE_S = 60.0
"""The profiler keeps everything that happens in memory until its end."""
MOST_AT_ONCE = 20
"""How many requests of the kinds that end nothing are acted on in a second; further ones are dropped."""
MOST_NOTES = 10
"""How many lines that are no requests are noted: each note is recorded."""


def ask(rundir: RunDir, what: str, **more: object) -> bool:
    """Send a request to the controller of a run. Returns False if there is none. Raises `OrchError` if it cannot be reached from here."""
    line = json.dumps({"ask": what, **more}).encode() + b"\n"  # shorter than PIPE_BUF: the line is written as a whole
    if not rundir.is_submitted:
        return rundir.lock.send(line)
    with contextlib.suppress(OrchError):  # the pipe of another machine
        if rundir.lock.send(line):
            return True
    if not rundir.is_alive():
        return False
    from . import engine_jobs

    engine_jobs.deliver(rundir, line)
    return True


def ask_stop(rundir: RunDir, reason: str, *, code: int = TERMINATED, now: bool = False, save: bool = False) -> bool:
    """End a run: its tasks get SIGTERM, and SIGKILL after the grace period (`now`: at once). A run that waits for its engine is withdrawn.

    `save`: a training that can do so saves itself first.

    Returns False if the run is over. Raises `OrchError` as `ask` does.
    """
    if rundir.is_submitted:
        from . import engine_jobs

        if engine_jobs.withdraw(rundir, reason, code):
            return True
    return ask(rundir, "stop", reason=reason, now=now, code=code, save=save)


def ask_running(rundir: RunDir, what: str, **more: object) -> None:
    """`ask` for what only a run that goes on can do. Raises `UsageError` for another."""
    if not ask(rundir, what, **more):
        left = "orch up starts a new run" if what == "restart" else "orch logs RUN, orch ps RUN or orch report RUN"
        raise UsageError(f"{rundir.run_id} is not running any more", left)


def ask_restart(rundir: RunDir) -> int:
    """Ask for a restart of all tasks. Returns the number of the attempt that ends. Raises `UsageError` if no other attempt can follow."""
    cluster = read_cluster(rundir)
    if cluster.awaits_plan and rundir.is_alive():
        raise UsageError(f"{rundir.run_id} has {no_tasks_yet(rundir)}")
    is_ending = cluster.is_over or (cluster.phase is Phase.STOPPING and not restarts.will_restart(cluster))
    if is_ending and rundir.is_alive():  # also while only its output is still fetched
        raise UsageError(f"{rundir.run_id} is ending and cannot start again; orch up starts a new run")
    ask_running(rundir, "restart")
    return cluster.attempt


def handle_requests(rundir: RunDir, supervisor: Supervisor, *, has_file: bool = False) -> None:
    """Act on the requests to the run that this process holds, in the loop that runs now, as long as this loop runs.

    `has_file`: requests come in the file, too. A controller that resumes a run begins where the former one has left off: a user who asked
    for the end of the run while no controller read still waits for this end.
    """
    import asyncio  # here: a command that only asks need not wait for this import

    fd = rundir.lock.requests
    if fd is not None:
        asyncio.get_running_loop().add_reader(fd, Requests(fd, supervisor).read)
    if has_file:
        from ..record import engine_files  # most runs have no engine

        file = Follower(rundir.path / "requests", offset=engine_files.read_offset(rundir.path))
        # Once the run has begun, or was resumed: before that, the end of a run has no meaning.
        asyncio.get_running_loop().call_soon(_read_file, rundir, file, Requests(-1, supervisor))


def _read_file(rundir: RunDir, file: Follower, requests: Requests) -> None:
    """Act on the new lines of the file `requests`, now and then each second. A file server tells no one when a file grows."""
    import asyncio

    from ..record import engine_files

    asyncio.get_running_loop().call_later(FILE_S, _read_file, rundir, file, requests)
    with contextlib.suppress(OSError, OrchError):
        if data := file.read(READ_BYTES):
            requests.take(data)
            engine_files.keep_offset(rundir.path, file.offset - len(requests.rest))


class Requests:
    """Reads the requests to a run. The run goes on, whatever lies in the pipe and no matter who else reads it."""

    def __init__(self, fd: int, supervisor: Supervisor) -> None:
        self._fd, self._supervisor = fd, supervisor
        self.rest = b""
        """The beginning of a line whose end has not been read."""
        self._noted = self._count = 0
        self._second = -math.inf

    def read(self) -> None:
        """Act on the requests that wait: on some of them, if there are many."""
        with contextlib.suppress(OSError):  # another process may read the pipe too (`cat control`), and be faster
            self.take(os.read(self._fd, READ_BYTES))

    def take(self, data: bytes) -> None:
        """Act on the lines that end in these bytes."""
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[: LONGEST + 1]
        for line in filter(None, lines):
            self._act(line)

    def _is_too_much(self) -> bool:
        """True if there were `MOST_AT_ONCE` requests in the last second: each has its order to each task, and its event."""
        at = time.monotonic()
        if at - self._second >= 1.0:
            self._second, self._count = at, 0
        self._count += 1
        return self._count > MOST_AT_ONCE

    def _act(self, line: bytes) -> None:
        supervisor = self._supervisor
        try:
            request = json.loads(line) if len(line) <= LONGEST else None
        except (ValueError, RecursionError):
            request = None
        match request:
            case {"ask": "stop", "reason": str(reason), "now": bool(now), **more}:
                for _ in range(2 if now else 1):
                    code = INTERRUPTED if more.get("code") == INTERRUPTED else TERMINATED
                    supervisor.stop(reason, code, saves=more.get("save") is True)
            case {"ask": "restart"}:
                supervisor.restart()
            case {"ask": "stacks" | "signal" | "profile"} if self._is_too_much():
                pass
            case {"ask": "stacks"}:
                supervisor.show_stacks()
            # A bool is a number in Python, and True is signal 1.
            case {"ask": "signal", "task": str(task), "number": int(number)} if type(number) is int and number in signal.valid_signals():
                supervisor.send_signal(task, number)
            case {"ask": "profile", "tasks": [*names], "id": str(id), "seconds": float(seconds), "at_risk": bool(at_risk)} if (
                0 < seconds <= LONGEST_PROFILE_S
            ):
                supervisor.profile([*map(str, names)], id, seconds, at_risk=at_risk)
            case _ if self._noted < MOST_NOTES:
                self._noted += 1
                last = "; further ones are not noted" if self._noted == MOST_NOTES else ""
                supervisor.note(f"a line among the requests is no request: {line[:80]!r}{last}")


def end_with_parent(owner: int, stop: Callable[[str, int], None]) -> None:
    """End the run when the process `owner`, the parent of this one, has ended. To be called in the loop of the run."""
    import asyncio

    if os.getppid() == owner:
        asyncio.get_running_loop().call_later(PARENT_S, end_with_parent, owner, stop)
    else:
        stop(ORPHANED, TERMINATED)
