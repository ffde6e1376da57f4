"""Reads what the kernel knows of the TCP connections of processes to other hosts: sock_diag(7), tcp(7). No root is needed.

The kernel lists all connections of this network namespace; those count that processes of the caller hold open. Which these are is looked
up in /proc for a connection that was not there before, and once for each.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

from ...protocol.frames import LinkUse
from ...values.fast_dataclass import dataclass
from ..processes.proc_files import read_children

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _DUMP, _ERROR, _DONE = 4, 20, 1, 0x300, 2, 3
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBxI48x")
_ESTABLISHED, _INFO = 1 << 1, 2
_SOCKET = struct.Struct("=8x16s16s")
_TAIL = struct.Struct("=24xII")
"""Of an answer: behind the ports and addresses, the user and the inode."""
_ATTRIBUTE = struct.Struct("=HH")
_TCP_INFO = struct.Struct("=100xI16xQ28xI8xQQ")
"""All retransmissions, bytes acknowledged, data segments, time with data on its way, and of this the time in which the receiver's window
was full. Linux has had all of these since 4.10."""
_MAPPED = bytes(10) + b"\xff\xff"
_INODE = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection, and what the kernel has counted since it was made."""

    inode: int
    uid: int
    peer: str
    """The other end's address."""
    retransmitted: int
    acknowledged: int
    segments: int
    busy: float
    """Seconds in which data were on their way, and the receiver could take them."""


class Links:
    """The connections of some processes to other hosts, from one reading to the next."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._owned: dict[int, bool] = {}
        """The inodes of connections to other hosts, and whether the processes hold them."""
        self._before: dict[int, Connection] = {}
        self._at = 0.0

    def read(self, pids: Iterable[int], now: float) -> tuple[LinkUse, ...]:
        """Return what was sent to each other host since the last reading; nothing the first time. `now`: a clock that only grows."""
        found = {one.inode: one for one in connections() if one.inode and one.uid == os.getuid()}
        if found.keys() - self._owned.keys():
            every = (each for pid in pids for each in (pid, *read_children(pid, self._proc)))
            held = set(_inodes(every, self._proc))
            self._owned = {inode: self._owned.get(inode, False) or inode in held for inode in found}
        own = {inode: one for inode, one in found.items() if self._owned[inode]}
        pairs = [(self._before[inode], one) for inode, one in own.items() if inode in self._before]
        seconds, self._at, self._before = now - self._at, now, own
        peers = dict.fromkeys(one.peer for _, one in pairs)
        links = [_link(peer, [pair for pair in pairs if pair[1].peer == peer], seconds) for peer in peers] if seconds > 0 else []
        return tuple(link for link in links if link.sent)


def _link(peer: str, pairs: Sequence[tuple[Connection, Connection]], seconds: float) -> LinkUse:
    """Return what was sent over the connections to one host."""
    sent = sum(now.acknowledged - before.acknowledged for before, now in pairs)
    segments = sum(now.segments - before.segments for before, now in pairs)
    again = sum(now.retransmitted - before.retransmitted for before, now in pairs)
    # Connections that send at the same time share the link.
    busy = max(now.busy - before.busy for before, now in pairs)
    return LinkUse(peer, round(sent / seconds), round(sent / max(busy, 1e-4)), round(again / max(1, segments), 5), again)


def _inodes(pids: Iterable[int], proc: str) -> Iterator[int]:
    """The sockets that processes hold open."""
    for pid in pids:
        try:
            names = os.listdir(f"{proc}/{pid}/fd")
        except OSError:  # it has ended
            continue
        for name in names:
            try:
                found = _INODE.match(os.readlink(f"{proc}/{pid}/fd/{name}"))
            except OSError:
                continue
            if found:
                yield int(found[1])


def connections() -> list[Connection]:
    """The established connections of this network namespace to other hosts. Raises OSError where the kernel does not tell."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        try:
            return [one for family in (socket.AF_INET, socket.AF_INET6) for one in _ask(netlink, family)]
        except struct.error as error:
            raise OSError(errno.EPROTO, f"the kernel tells about connections in another form: {error}") from None


def _ask(netlink: socket.socket, family: int) -> Iterator[Connection]:
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    netlink.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST | _DUMP, 0, 0) + query)
    while True:
        data = netlink.recv(1 << 15)
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _DONE or size < _HEADER.size:
                return
            if kind == _ERROR:
                raise OSError(errno.EOPNOTSUPP, "the kernel does not tell about connections")
            if (found := _read(memoryview(data)[at + _HEADER.size : at + size], family)) is not None:
                yield found
            at += size + 3 & ~3


def _read(message: memoryview, family: int) -> Connection | None:
    """The connection of a message; None: it does not leave this host, or the kernel tells nothing of it."""
    here, peer = _SOCKET.unpack_from(message)
    if here == peer or _is_loopback(peer, family):
        return None
    uid, inode = _TAIL.unpack_from(message, _SOCKET.size)
    at = _SOCKET.size + _TAIL.size
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _TCP_INFO.size:
            again, acknowledged, segments, busy, full = _TCP_INFO.unpack_from(message, at + _ATTRIBUTE.size)
            return Connection(inode, uid, _text(peer, family), again, acknowledged, segments, max(0, busy - full) / 1e6)
        at += max(size, _ATTRIBUTE.size) + 3 & ~3
    return None


def _is_loopback(address: bytes, family: int) -> bool:
    if family == socket.AF_INET or address.startswith(_MAPPED):
        return address[0 if family == socket.AF_INET else 12] == 127
    return address == bytes(15) + b"\x01"


def _text(address: bytes, family: int) -> str:
    if family == socket.AF_INET or address.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, address[:4] if family == socket.AF_INET else address[12:])
    return socket.inet_ntop(family, address)
