"""The addresses of this host."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from typing import Any

from ...protocol.messages import NetAddress


class _Address(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Entry(ctypes.Structure):
    """The beginning of `struct ifaddrs` of getifaddrs(3), as Linux has it."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.POINTER(_Address)),
        ("netmask", ctypes.POINTER(_Address)),
    )


_IFF_UP = 0x1


def find_addresses() -> tuple[NetAddress, ...]:
    """The addresses of this host's interfaces that are up, as the kernel lists them; none on systems other than Linux."""
    if sys.platform != "linux":
        return ()
    libc: Any = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return ()
    found = []
    place = first.value
    while place:
        item = _Entry.from_address(place)
        address = _read(item.address)
        if address and item.flags & _IFF_UP:
            number = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
            prefix = sum(byte.bit_count() for byte in _read(item.netmask))
            found.append(NetAddress(item.name.decode(errors="replace"), number, prefix))
        place = item.next
    libc.freeifaddrs(first)
    return tuple(found)


def _read(address: Any) -> bytes:
    """The bytes of an IPv4 or IPv6 address; none of another kind of address."""
    if not address:
        return b""
    data = bytes(address.contents.data)
    return {socket.AF_INET: data[2:6], socket.AF_INET6: data[6:22]}.get(address.contents.family, b"")


def find_arrival() -> str:
    """The address of this host to which the ssh client has connected (sshd sets the variable; see ssh(1)); empty without ssh."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2].removeprefix("::ffff:") if len(words) == 4 else ""
