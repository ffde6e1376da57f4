"""Whether this host reaches others: by connecting, as the tasks will. Who is reached says its word, see doorbell.py."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from ...protocol.messages import Reached, Target
from ..loop import Loop

TRY_S = 2.5
"""How long one connection may take: a lost SYN is sent again after one second."""
TRIES = 2
"""Connections that may time out. Each comes from another port: a path that loses some (one of several links that is dead, a firewall
that looks at the sender's port) is one by which the tasks get through, and no reason to take another address."""
HEAR_S = 20.0
"""How long a host that is reached may take to say its word: its agent has other things to do."""
LOOKUP_S = 40.0
"""How long a name may be looked up: the resolver itself gives up after 5 s, twice, with each of up to three servers (resolv.conf(5))."""
AT_ONCE = 64

_Place = tuple[int, int, int, str, Any]
"""What getaddrinfo(3) tells: family, type, protocol, name, address."""


class Trials:
    """Tries all addresses of all targets, a bounded number at a time; `on_done` gets the results once."""

    def __init__(self, loop: Loop, targets: tuple[Target, ...], on_done: Callable[[tuple[Reached, ...]], None]) -> None:
        self._loop, self._on_done = loop, on_done
        self._waiting = deque((target, address) for target in targets for address in target.addresses)
        self._left = len(self._waiting)
        self._results: list[Reached] = []
        if not self._waiting:
            loop.after(0, lambda: on_done(()))
        for _ in range(min(AT_ONCE, self._left)):
            self._next()

    def _next(self) -> None:
        if self._waiting:
            target, address = self._waiting.popleft()
            _Trial(self._loop, target, address, self._take)

    def _take(self, result: Reached) -> None:
        self._results.append(result)
        self._left -= 1
        if self._left:
            self._next()
        else:
            self._on_done(tuple(self._results))


class _Trial:
    """One connection to one address."""

    def __init__(self, loop: Loop, target: Target, address: str, on_done: Callable[[Reached], None]) -> None:
        self._loop, self._target, self._address, self._on_done = loop, target, address, on_done
        self._sock: socket.socket | None = None
        self._heard = b""
        self._is_connected = self._over = False
        try:
            place = _resolve(address, target.port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            self._look_up()
        else:
            self._connect(place)

    def _look_up(self) -> None:
        """In a thread of its own, for a resolver takes as long as it pleases; that closes its end when it knows."""
        from threading import Thread  # most addresses are numbers

        found: list[_Place | Exception] = []
        try:
            self._sock, teller = socket.socketpair()
            self._loop.on_readable(self._sock, lambda: self._looked_up(found))
            Thread(target=_ask, args=(self._address, self._target.port, found, teller), daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._end_soon(f"its name cannot be looked up: {error}")
            return
        self._loop.after(LOOKUP_S, lambda: self._end(f"its name is still being looked up after {LOOKUP_S:g} s") if not found else None)

    def _looked_up(self, found: list[_Place | Exception]) -> None:
        assert self._sock is not None
        self._loop.forget(self._sock)
        self._sock.close()
        self._sock = None
        if isinstance(found[0], Exception):
            self._end(_words(found[0]))
        else:
            self._connect(found[0])

    def _connect(self, place: _Place, tries: int = TRIES) -> None:
        family, kind, protocol, _, address = place
        try:
            self._sock = sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            error = sock.connect_ex(address)
        except OSError as failed:
            self._end_soon(_words(failed))
            return
        if error not in (0, errno.EINPROGRESS):
            self._end_soon(os.strerror(error).lower())
            return
        self._loop.on_writable(sock, self._connected)
        self._loop.after(TRY_S, lambda: self._tire(sock, place, tries - 1))

    def _tire(self, sock: socket.socket, place: _Place, tries: int) -> None:
        if self._over or self._is_connected:
            return
        if not tries:
            self._end("timed out")
            return
        self._loop.forget(sock)
        sock.close()
        self._connect(place, tries)

    def _end_soon(self, refusal: str) -> None:
        self._loop.after(0, lambda: self._end(refusal))

    def _connected(self) -> None:
        assert self._sock is not None
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._end(os.strerror(error).lower())
            return
        if not self._target.word:
            self._end("")
            return
        self._is_connected = True
        self._loop.forget(self._sock)
        self._loop.on_readable(self._sock, self._read)
        self._loop.after(HEAR_S, lambda: self._end(f"it is reached, and says nothing for {HEAR_S:g} s"))

    def _read(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(256)
        except OSError as error:
            self._end(_words(error))
            return
        self._heard += data
        if not data or len(self._heard) > len(self._target.word):
            self._end("" if self._heard == self._target.word.encode() else "another machine answers")

    def _end(self, refusal: str) -> None:
        if self._over:
            return
        self._over = True
        if self._sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(self._sock)
            self._sock.close()
        self._on_done(Reached(self._target.host, self._address, refusal))


def _resolve(address: str, port: int, flags: int = 0) -> _Place:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]


def _ask(address: str, port: int, found: list[_Place | Exception], teller: socket.socket) -> None:
    with teller:
        try:
            found.append(_resolve(address, port))
        except Exception as error:  # whatever it is, it is waited for
            found.append(error)


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
