"""Whether hosts reach each other: by connecting, as their tasks will. `ConnectTests` tries other hosts, `ProbeListener` answers them.

Before the tasks start, a host listens on the ports that it holds, and sends a word that the controller has given to it alone: another
machine with the same private address, of which there are many, is not taken for this host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
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
WORD_S = 20.0
"""How long a host that is reached may take to send its word: its agent has other things to do."""
LOOKUP_S = 40.0
"""How long a name may be looked up: the resolver itself gives up after 5 s, twice, with each of up to three servers (resolv.conf(5))."""
AT_ONCE = 64
"""Connections that are being made at the same time."""

_Resolved = tuple[int, int, int, str, Any]
"""What getaddrinfo(3) returns: family, type, protocol, name, address."""


class ConnectTests:
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
            _ConnectTest(self._loop, target, address, self._on_result)

    def _on_result(self, result: Reached) -> None:
        self._results.append(result)
        self._left -= 1
        if self._left:
            self._next()
        else:
            self._on_done(tuple(self._results))


class _ConnectTest:
    """One connection to one address::

    a name ──► _look_up ──► _connect ──► _on_connected ──► _on_readable: reached by its word, or another machine answers
    a number ───────────────► │
                              └──► an error, or `TRIES` times no answer: not reached
    """

    def __init__(self, loop: Loop, target: Target, address: str, on_done: Callable[[Reached], None]) -> None:
        self._loop, self._target, self._address, self._on_done = loop, target, address, on_done
        self._sock: socket.socket | None = None
        self._received = b""
        self._is_connected = self._over = False
        try:
            resolved = _resolve(address, target.port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            self._look_up()
        else:
            self._connect(resolved)

    def _look_up(self) -> None:
        """In a thread of its own, for a resolver may take long. The thread closes its end of the socket pair when it has an answer."""
        from threading import Thread  # most addresses are numbers

        found: list[_Resolved | Exception] = []
        try:
            self._sock, done = socket.socketpair()
            self._loop.on_readable(self._sock, lambda: self._on_looked_up(found))
            Thread(target=_resolve_slowly, args=(self._address, self._target.port, found, done), daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._end_later(f"its name cannot be looked up: {error}")
            return
        self._loop.after(LOOKUP_S, lambda: self._end(f"its name is still being looked up after {LOOKUP_S:g} s") if not found else None)

    def _on_looked_up(self, found: list[_Resolved | Exception]) -> None:
        assert self._sock is not None
        self._loop.forget(self._sock)
        self._sock.close()
        self._sock = None
        if isinstance(found[0], Exception):
            self._end(_describe(found[0]))
        else:
            self._connect(found[0])

    def _connect(self, resolved: _Resolved, tries: int = TRIES) -> None:
        family, kind, protocol, _, address = resolved
        try:
            self._sock = sock = socket.socket(family, kind, protocol)
            # The connection ends with a reset: in TIME_WAIT, the port of the other host could not be held again for a minute.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.setblocking(False)
            error = sock.connect_ex(address)
        except OSError as failed:
            self._end_later(_describe(failed))
            return
        if error not in (0, errno.EINPROGRESS):
            self._end_later(os.strerror(error).lower())
            return
        self._loop.on_writable(sock, self._on_connected)
        self._loop.after(TRY_S, lambda: self._on_timeout(sock, resolved, tries - 1))

    def _on_timeout(self, sock: socket.socket, resolved: _Resolved, tries: int) -> None:
        if self._over or self._is_connected:
            return
        if not tries:
            self._end("timed out")
            return
        self._loop.forget(sock)
        sock.close()
        self._connect(resolved, tries)

    def _end_later(self, refusal: str) -> None:
        self._loop.after(0, lambda: self._end(refusal))

    def _on_connected(self) -> None:
        assert self._sock is not None
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._end(os.strerror(error).lower())
            return
        self._is_connected = True
        self._loop.forget(self._sock)
        self._loop.on_readable(self._sock, self._on_readable)
        self._loop.after(WORD_S, lambda: self._end(f"it is reached, and says nothing for {WORD_S:g} s"))

    def _on_readable(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(256)
        except OSError as error:
            self._end(_describe(error))
            return
        self._received += data
        if not data or len(self._received) > len(self._target.word):
            self._end("" if self._received == self._target.word.encode() else "another machine answers")

    def _end(self, refusal: str) -> None:
        if self._over:
            return
        self._over = True
        if self._sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(self._sock)
            self._sock.close()
        self._on_done(Reached(self._target.host, self._target.port, self._address, refusal))


def _resolve(address: str, port: int, flags: int = 0) -> _Resolved:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]


def _resolve_slowly(address: str, port: int, found: list[_Resolved | Exception], done: socket.socket) -> None:
    with done:
        try:
            found.append(_resolve(address, port))
        except Exception as error:  # of whatever kind: the test waits for an answer
            found.append(error)


def _describe(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


class ProbeListener:
    """Sends `word` to every host that connects to `port`, which this process holds, until it is closed."""

    def __init__(self, loop: Loop, port: int, word: str) -> None:
        self._loop, self._word = loop, word.encode()
        self._sock: socket.socket | None = None
        for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
            try:
                self._sock = self._listen(family, address, port)
                break
            except OSError:
                continue
        if self._sock is not None:
            loop.on_readable(self._sock, self._on_connection)

    @staticmethod
    def _listen(family: int, address: str, port: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address, port))
            sock.listen(1024)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    def _on_connection(self) -> None:
        assert self._sock is not None
        with contextlib.suppress(OSError):
            peer, _ = self._sock.accept()
            with peer:
                peer.setblocking(False)
                peer.send(self._word)
                peer.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None
