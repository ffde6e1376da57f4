"""What this host's network is like, and whether it reaches the others: by connecting, as the tasks will.

A host that can be tried listens on one of its held ports and says a word that only it knows: another machine with the same
private address, of which there are many, is not taken for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from ..contract import NetAddress, Reached, Target
from .loop import Loop

TRY_S = 4.0
"""How long one connection may take: a lost SYN is sent again after one second, and after three."""
LOOKUP_S = 40.0
"""How long a name may be looked up: the resolver itself gives up after 5 s, twice, with each of up to three servers (resolv.conf(5))."""
AT_ONCE = 64

_Place = tuple[int, int, int, str, Any]
"""What getaddrinfo(3) tells: family, type, protocol, name, address."""


# --- what there is ------------------------------------------------------------------------------


class _Address(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Entry(ctypes.Structure):
    """`struct ifaddrs` of getifaddrs(3), as Linux has it."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Address)),
    ("netmask", ctypes.POINTER(_Address)),
    ("other", ctypes.c_void_p),
    ("private", ctypes.c_void_p),
]
_IFF_UP = 0x1


def find_addresses() -> tuple[NetAddress, ...]:
    """The addresses of this host's interfaces that are up, as the kernel lists them; none where nobody can tell."""
    if sys.platform != "linux":
        return ()
    libc: Any = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return ()
    found = []
    entry = first
    while entry:
        item = entry.contents
        number = _number(item.address) if item.flags & _IFF_UP else ""
        if number:
            found.append(NetAddress(item.name.decode(errors="replace"), number, _prefix(item.netmask)))
        entry = item.next
    libc.freeifaddrs(first)
    return tuple(found)


def _number(address: Any) -> str:
    if not address:
        return ""
    family, data = address.contents.family, bytes(address.contents.data)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[2:6])
    return socket.inet_ntop(socket.AF_INET6, data[6:22]) if family == socket.AF_INET6 else ""


def _prefix(netmask: Any) -> int:
    if not netmask:
        return 0
    data = bytes(netmask.contents.data)
    bits = data[2:6] if netmask.contents.family == socket.AF_INET else data[6:22]
    return sum(byte.bit_count() for byte in bits)


def find_arrival() -> str:
    """The address of this host by which an ssh client has come in (sshd sets the variable; see ssh(1)); empty without one."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2].removeprefix("::ffff:") if len(words) == 4 else ""


# --- being tried --------------------------------------------------------------------------------


class Doorbell:
    """Says `word` to whoever connects to `port`, which this process holds, until it is closed."""

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
            loop.on_readable(self._sock, self._answer)

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

    def _answer(self) -> None:
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


# --- trying -------------------------------------------------------------------------------------


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
        self._over = False
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

    def _connect(self, place: _Place) -> None:
        family, kind, protocol, _, address = place
        try:
            self._sock = socket.socket(family, kind, protocol)
            self._sock.setblocking(False)
            error = self._sock.connect_ex(address)
        except OSError as failed:
            self._end_soon(_words(failed))
            return
        if error not in (0, errno.EINPROGRESS):
            self._end_soon(os.strerror(error).lower())
            return
        self._loop.on_writable(self._sock, self._connected)
        self._loop.after(TRY_S, lambda: self._end("timed out"))

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
        self._loop.forget(self._sock)
        self._loop.on_readable(self._sock, self._read)

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
