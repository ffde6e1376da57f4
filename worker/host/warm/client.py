"""The agent's way to the user's warm process: let a fork of it, which has imported everything, be the agent in our place.

We then only stand by: what ends the one ends the other, and the exit code is handed on. Until the fork has said that it has begun
it has nothing of ours that it would use, and we can still do everything ourselves, and say why.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from ... import clock
from ...protocol import messages
from ...protocol.channel import ChannelError, Decoder
from .. import memfd
from ..program import program_checks
from ..tasks import import_environment
from . import key, place
from .arrival import Arrival
from .place import MESSAGE_BYTES, ROOM

PATIENCE_S = clock.patience(4.0)
"""How long each answer is waited for."""
_NOT_USED = "the warm template is not used: "


class NotUsedError(Exception):
    """The warm process is there and cannot be used; the message says why."""


def move(orders_fd: int, frames_fd: int) -> Arrival | int:
    """Have a fork of the warm process be the agent, if it fits; returns its exit code then, and otherwise what we go on with ourselves."""
    seed, first = _read_first(orders_fd)
    if isinstance(first, messages.Code):  # it has to be answered before anybody says what is to be imported
        return Arrival(seed, f"{_NOT_USED}the working directory is sent to this host (backend.code: ship)")
    if first is None or first.template is None or not program_checks.needs_template(first.template, first.programs, first.cwd):
        return Arrival(seed)
    try:
        with _connected() as connection:
            if connection is None:
                return Arrival(seed)
            try:
                pidfd, lifeline = _send_ahead(connection, first, seed, orders_fd, frames_fd)
            except (OSError, ValueError, KeyError) as error:
                raise NotUsedError(f"it does not answer as it should ({error})") from None
            return _stand_by(connection, pidfd, lifeline, orders_fd, frames_fd)
    except NotUsedError as error:
        return Arrival(seed, f"{_NOT_USED}{error}")


def _read_first(orders_fd: int) -> tuple[bytes, messages.Hello | messages.Code | None]:
    """What has been read, and the first order in it that asks for something; None: there is none, or it is the agent's to deal with."""
    decoder, seed = Decoder(messages.ORDERS), b""
    while data := os.read(orders_fd, 1024 * 1024):
        seed += data
        try:
            for order, _ in decoder.feed(data):
                if isinstance(order, messages.Ping):  # for the agent to answer, whoever that is
                    continue
                return seed, order if isinstance(order, (messages.Hello, messages.Code)) else None
        except ChannelError:
            break
    return seed, None


@contextlib.contextmanager
def _connected() -> Iterator[socket.socket | None]:
    """A connection to our own user's process; None: there is none. Raises `NotUsedError` where there should be."""
    try:
        found = place.find(os.environ)
    except place.UntrustedError as error:
        raise NotUsedError(str(error)) from None
    if found is None:
        yield None
        return
    with place.closing(found):
        try:
            connection = found.connect(PATIENCE_S)
        except ConnectionRefusedError:
            if found.lock():  # and so nobody else is about to start one
                found.clear()
            raise NotUsedError("its process has died; orch warm start starts a new one") from None
        except OSError as error:
            raise NotUsedError(f"it does not answer ({error.strerror or error}); orch warm stop ends it") from None
        if connection is None:
            yield None
            return
        with connection:
            if place.peer(connection)[1] != os.geteuid():
                raise NotUsedError("its process belongs to another user")
            yield connection


def _send_ahead(connection: socket.socket, hello: messages.Hello, seed: bytes, orders_fd: int, frames_fd: int) -> tuple[int, int]:
    """Returns the pidfd of the fork that has begun in our place, and the end of the lifeline that keeps it. Raises `NotUsedError`."""
    assert hello.template is not None
    if len(hello.run_id.encode()) > ROOM:
        raise NotUsedError(f"the name of the run is longer than {ROOM} bytes")
    env = import_environment.compose_for_template(hello.template, os.environ, hello.run_id)
    _send(connection, {"ask": "come"}, [memfd.keep_in_memory(_text(key.describe(env, hello.template.preload, hello.cwd)))])
    came = _hear(connection)
    pidfd = os.pidfd_open(came["pid"])
    life_read, life_write = os.pipe()
    threads = env.get(key.THREADS, "")
    log = os.path.join(hello.shared_dir, "agents", "template-1.log") if hello.shared_dir else os.devnull
    order = {
        "inherited": key.inherit(),
        "seed": seed.decode("latin-1"),
        "note": f"tasks are forked from the warm template of {time.strftime('%H:%M:%S', time.localtime(came['since']))}",
        "run_id": hello.run_id,
        "directory": program_checks.directory_of_first(hello.programs, hello.cwd),
        "log": log,
        "threads": int(threads) if threads.isdigit() and int(threads) > 0 else None,
    }
    try:
        os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
        _send(connection, {"go": True}, [memfd.keep_in_memory(_text(order)), os.dup(orders_fd), os.dup(frames_fd), os.dup(2), life_read])
        _hear(connection)
        _send(connection, {"take": True}, [])
    except (NotUsedError, OSError) as error:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(life_write)
        os.close(pidfd)
        raise NotUsedError(str(error)) from None
    return pidfd, life_write


def _text(value: Any) -> bytes:
    return json.dumps(value).encode("ascii")


def _send(connection: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    try:
        place.send(connection, message, fds)
    except OSError as error:
        raise NotUsedError(f"it does not answer ({error.strerror or error})") from None


def _hear(connection: socket.socket) -> dict[str, Any]:
    try:
        data = connection.recv(MESSAGE_BYTES)
    except TimeoutError:
        raise NotUsedError(f"it has not answered for {PATIENCE_S:g} s; orch warm stop ends it") from None
    except OSError as error:
        raise NotUsedError(f"it does not answer ({error.strerror or error})") from None
    if not data:
        raise NotUsedError("it has died")
    message: dict[str, Any] = json.loads(data)
    if message.get("refused"):
        ended = "; it has ended, and orch warm start starts a new one" if message.get("stale") else ""
        raise NotUsedError(f"{message['refused']}{ended}")
    return message


def _stand_by(connection: socket.socket, pidfd: int, lifeline: int, orders_fd: int, frames_fd: int) -> int:
    """Wait for the end of the one that has taken our place; the controller's channel is its alone now. Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(pidfd))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (orders_fd, frames_fd):
        os.dup2(nothing, fd, inheritable=False)
    connection.settimeout(None)
    data = b""
    with contextlib.suppress(OSError):
        data = connection.recv(MESSAGE_BYTES)
    if data:
        return int(json.loads(data)["code"])
    os.close(lifeline)
    sys.stderr.write("the agent, a fork of the warm template, was killed\n")
    return 1


def _pass_on(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
