"""A network of their own for the tasks of a host (`network: private`): a network namespace with nothing but its loopback device.

Nothing outside reaches a port inside, and nothing inside reaches the outside. The agent enters the namespace before it holds ports, and
its tasks inherit it. The namespace has no name, so the kernel removes it with the last of these processes, however that ends. Sockets
with a path, pipes and signals work across.

A user who may not make network namespaces makes a user namespace around it, in which all ids are the same as before. Capabilities in the
user namespace are given up again: a task may do inside what it may do outside, and no more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000  # `os.unshare` is there from Python 3.12 on
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # netdevice(7)
_CAPABILITY_VERSION_3 = 0x20080522  # capset(2)
_REMEDY = "run orch as root, or let users make user namespaces (user.max_user_namespaces, user.max_net_namespaces, seccomp)"
_WORDS = {errno.EPERM: "the kernel does not allow it", errno.ENOSPC: "the kernel's limit of namespaces is reached"}

_entered = False


def enter() -> None:
    """Put this process, which has one thread, into a network of its own; once. Raises OSError with the reason and a remedy."""
    global _entered
    if _entered:
        return
    if sys.platform != "linux":
        raise OSError("a private network takes Linux, which has network namespaces")
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        is_inside_user_namespace = _unshare(libc)
        _bring_loopback_up()
        if is_inside_user_namespace:
            _give_up_capabilities(libc)
    except OSError as error:
        why = _WORDS.get(error.errno or 0) or error.strerror or str(error)
        raise OSError(f"a private network cannot be made here: {why}; {_REMEDY}") from None
    _entered = True


def find_obstacle() -> str:
    """Why `enter` fails on this host; empty: it works. Tried in a process of its own."""
    read, write = os.pipe()
    with open(read) as answer:
        pid = os.fork()
        if pid == 0:
            try:
                enter()
            except BaseException as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        found = answer.read()
    os.waitpid(pid, 0)
    return found


def _unshare(libc: ctypes.CDLL) -> bool:
    """Enter a new network namespace. Returns whether a new user namespace is around it."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return False
    if ctypes.get_errno() != errno.EPERM:
        raise _last_error()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        raise _last_error()
    # A user may map a group only after the right to change groups is given up; user_namespaces(7).
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _bring_loopback_up() -> None:
    """Bring the loopback device up: the kernel gives it the addresses 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        found = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack("16sH22x", found)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def _give_up_capabilities(libc: ctypes.CDLL) -> None:
    """A program that is executed would lose them in any case; a forked task would not."""
    header, none = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    if libc.capset(header, none):
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
