"""The warm process: has imported, keeps that between runs, and never computes.

It listens in the directory of `place.py`. One message is one JSON object. An agent asks ``{"ask": "come"}`` with a descriptor,
`key.describe`'s answer for its run in memory. If that is what we would describe, and no file has changed since our import, we fork.
The fork says ``{"pid": …, "since": …}`` on the same connection, and from then on it is the agent that it speaks with: it gets the
agent's descriptors and what `key.inherit` found there, forks the run's template from itself, says ``{"begun": true}``, hears
``{"take": true}``, and is the agent of that run, in its place, until ``{"code": …}``. So everything below it, its tasks' ends, what they
leave behind, its own death, is as with any agent and its template; and of us nothing is needed any more. Whoever cannot be served
is told ``{"refused": …}``; also ``"stale": true``, if that will not change any more. Then we end.

``{"ask": "status"}`` and ``{"ask": "end"}`` are `orch warm`'s.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..tasks import processes
from ..template.safety import Safety, open_files
from ..template.template_server import describe as describe_error
from ..template.template_server import load, show
from . import key
from .files import Snapshot
from .move import Move
from .place import MESSAGE_BYTES, Place, peer
from .threads import can_be_set

_IMPATIENCE_S = 1.0
"""How long somebody who has connected may take to say what he wants."""


class StartError(Exception):
    """This process cannot be forked from; the message says why."""


def prepare(preload: Sequence[str]) -> Warm:
    """Import, and see that it was harmless. Raises `StartError`."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rooms = tuple(processes.find_room(name) for name in ("ORCH_RUN_ID", "ORCH_TASK"))
    for name in ("ORCH_RUN_ID", "ORCH_TASK"):
        os.environ.pop(name, None)
    described = key.describe(os.environ, preload, os.getcwd())
    ours = open_files()
    try:
        seconds = load(preload)
    except BaseException as error:
        show(error)
        raise StartError(f"importing {', '.join(preload)} failed: {describe_error(error)}") from None
    safety = Safety("", ours)
    danger = safety.find_activity()
    if danger is not None:
        raise StartError(f"{', '.join(preload)} cannot be kept for forking: {danger}")
    kept = {fd for fd in open_files() if fd not in ours}
    os.chdir("/")
    return Warm(described, seconds, kept, rooms)


class Warm:
    """`described`: by `key.describe`, before the imports; `seconds`: what they took; `kept`: descriptors that they have left
    open; `rooms`: for a run's and a task's name."""

    def __init__(self, described: dict[str, Any], seconds: float, kept: set[int], rooms: tuple[tuple[int, int] | None, ...]) -> None:
        self._described, self._seconds, self._kept, self._rooms = described, seconds, kept, rooms
        self._snapshot, self._safety = Snapshot(), Safety("", open_files())
        self._threads_are_free = can_be_set()
        self._since, self._used_at, self._uses = time.time(), time.monotonic(), 0
        self._agents: dict[int, int] = {}
        """Pids of our forks, by pidfd."""
        self._is_over = False

    def serve(self, place: Place, idle_s: float, on_listening: Callable[[], None]) -> Move | None:
        """Until nobody has used it for `idle_s`, or it is told to end, or stale. Returns a `Move` in a fork that is to become an agent."""
        self._place, self._idle_s = place, idle_s
        self._server = place.listen()
        on_listening()
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        while not self._is_over and (left_s := self._left_s()) > 0:
            for fd, _ in poll.poll(left_s * 1000 if self._agents == {} else None):
                if fd != self._server.fileno():
                    poll.unregister(fd)
                    self._reap(fd)
                    continue
                move = self._answer()
                if move is not None:
                    return move
                for pidfd in self._agents:
                    poll.register(pidfd, select.POLLIN)
        place.clear()
        return None

    def _left_s(self) -> float:
        """Until it has been idle for too long; as long as a run uses it, that is for ever."""
        return float("inf") if self._agents else self._used_at + self._idle_s - time.monotonic()

    def _reap(self, pidfd: int) -> None:
        os.waitpid(self._agents.pop(pidfd), 0)
        os.close(pidfd)
        self._used_at = time.monotonic()

    def _answer(self) -> Move | None:
        """Do what one visitor wants. The answer is a `Move` in a fork only."""
        try:
            connection, _ = self._server.accept()
        except OSError:
            return None
        with connection:
            connection.settimeout(_IMPATIENCE_S)
            try:
                if peer(connection)[1] != os.geteuid():
                    return None
                asked, text = _receive(connection)
                if asked == "end":
                    self._is_over = True
                why = self._find_obstacle(json.loads(text)) if text else None
                if asked == "come" and why is None:
                    return self._fork(connection)
                self._say(connection, why)
            except OSError:
                pass  # a visitor that is gone
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                show(error)  # in our log: a mistake of ours, or a visitor that speaks otherwise
        return None

    def _find_obstacle(self, theirs: dict[str, Any]) -> str | None:
        changed = self._snapshot.find_change()
        if changed is not None:
            self._is_over = True
            return f"{changed} has changed since it was imported"
        difference = key.find_difference(self._described, theirs, self._threads_are_free)
        if difference is not None:
            return f"{difference} from what {', '.join(self._described['preload'])} has been imported under"
        return self._safety.find_activity()

    def _say(self, connection: socket.socket, why: str | None) -> None:
        facts = {
            "pid": os.getpid(),
            "preload": self._described["preload"],
            "python": self._described["the interpreter"][0],
            "since": self._since,
            "import_s": self._seconds,
            "idle_timeout_s": self._idle_s,
            "idle_s": 0.0 if self._agents else time.monotonic() - self._used_at,
            "uses": self._uses,
            "running_agents": len(self._agents),
        }
        connection.send(json.dumps({**facts, "refused": why, "stale": self._is_over}).encode("ascii"))

    def _fork(self, connection: socket.socket) -> Move | None:
        pid = os.fork()
        if pid:
            self._agents[os.pidfd_open(pid)] = pid
            self._uses += 1
            self._used_at = time.monotonic()
            return None
        try:
            self._server.close()
            self._place.close()
            for pidfd in self._agents:
                os.close(pidfd)
            mine = connection.dup()
            mine.send(json.dumps({"pid": os.getpid(), "since": self._since}).encode("ascii"))
        except OSError:
            os._exit(0)  # the agent is gone; and this fork must not go on as its parent does
        return Move(mine, self._kept, self._rooms)


def _receive(connection: socket.socket) -> tuple[str, str]:
    """What is wanted, and the text that came with it."""
    data, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
    text = ""
    for fd in fds:
        with os.fdopen(fd, encoding="ascii") as file:
            file.seek(0)
            text = file.read()
    return str(json.loads(data)["ask"]), text
