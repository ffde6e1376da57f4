"""How a fork of the warm process becomes the agent of a run, with a template that is there from the beginning."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from ... import clock
from ...fast_dataclass import dataclass
from .. import agent
from ..tasks import processes
from ..template import template_server as template
from ..template.safety import Safety, open_files
from ..template.template_client import Running
from . import key
from .arrival import Arrival
from .place import MESSAGE_BYTES
from .threads import set_threads

DESCRIPTORS = 5
"""What comes with the agent's order to begin: that order, then orders, frames, stderr and the lifeline."""


@dataclass(frozen=True, slots=True)
class Move:
    """A fork that has just been made. `connection`: to the agent whose place it will take; `kept`, `rooms`: see `server.Warm`."""

    connection: socket.socket
    kept: set[int]
    rooms: tuple[tuple[int, int] | None, ...]


def become_agent(move: Move) -> dict[str, Any] | None:
    """Be the agent until `os._exit`. Returns in a task only, with its order."""
    fds = _wait_for_go(move.connection)
    given = _read(fds[0])
    orders, frames, stderr, lifeline = fds[1:]
    try:
        os.setsid()
        processes.hold_lifeline(lifeline)
        os.close(lifeline)
        key.take_over(given["inherited"])
        for number in (1, 2):
            os.dup2(stderr, number)
        processes.become_subreaper()
        clock.begin()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life_read, life_write = os.pipe()
        pid = os.fork()
    except (OSError, ValueError) as error:
        _say(move.connection, {"refused": str(error)})
        os._exit(0)
    if pid == 0:
        control.close()
        move.connection.close()
        for fd in (orders, frames, stderr, life_write):
            os.close(fd)
        return _serve_as_template(move, given, theirs, life_read)
    theirs.close()
    os.close(life_read)
    os.close(stderr)
    _say(move.connection, {"begun": True})
    if not move.connection.recv(MESSAGE_BYTES):
        os._exit(0)  # it has not waited for us, and is the agent itself
    arrival = Arrival(given["seed"].encode("latin-1"), given["note"], Running(pid, life_write, control))
    try:
        code = agent.Agent(orders, frames, arrival).run()
        _say(move.connection, {"code": code})
    finally:
        os._exit(1)  # the code is the other one's to exit with


def _wait_for_go(connection: socket.socket) -> list[int]:
    fds: list[int] = []
    connection.settimeout(None)
    with contextlib.suppress(OSError):
        _, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS)
    if len(fds) != DESCRIPTORS:
        os._exit(0)  # it has died, or changed its mind
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def _read(fd: int) -> dict[str, Any]:
    with os.fdopen(fd, encoding="ascii") as file:
        file.seek(0)
        given: dict[str, Any] = json.load(file)
    return given


def _say(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.send(json.dumps(message).encode("ascii"))


def _serve_as_template(move: Move, given: Mapping[str, Any], control: socket.socket, lifeline: int) -> dict[str, Any] | None:
    """Be this run's template, as `template.serve` is after its imports."""
    try:
        os.setsid()
        processes.hold_lifeline(lifeline)
        os.close(lifeline)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.redirect(given["log"], given["log"])
        run_room, task_room = move.rooms
        if run_room is not None:
            processes.show_mark(run_room, given["run_id"])
        if given["threads"] is not None:
            set_threads(given["threads"])
        opened = open_files()
        ours = {fd: target for fd, target in opened.items() if fd not in move.kept}
        safety = Safety(given["directory"], opened)
    except (OSError, ValueError):
        os._exit(1)
    return template.fork_tasks(control, safety, ours, task_room, seconds=0.0)
