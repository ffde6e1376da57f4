"""Where a user's warm process is found: a socket in a directory that nobody else can enter.

``$XDG_RUNTIME_DIR/orch``, or ``/run/user/UID/orch``, or ``orch-UID`` in the directory for temporary files. The directory is
trusted only if it is this user's and closed to others (0700); it is opened once and everything goes through that descriptor, so
that what was looked at is what is used, and a path that is too long for a socket's address (108 bytes) does no harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from ...fast_dataclass import dataclass
from .. import file_locks

SOCKET = "warm.sock"
LOG = "warm.log"
MESSAGE_BYTES = 64 * 1024
ROOM = 256
"""Bytes for the run's name in the environment that others see of a fork (see `processes.find_room`)."""
_CREDENTIALS = struct.Struct("iII")  # struct ucred


class UntrustedError(Exception):
    """The directory is not this user's alone; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that has been looked at. `fd`: it, open; close it with `close`."""

    path: str
    fd: int

    def within(self, name: str) -> str:
        """A short path of a file in it, whatever happens to the directory's name meanwhile."""
        return f"/proc/self/fd/{self.fd}/{name}"

    def lock(self) -> bool:
        """Be the only one, until this descriptor and all its copies are closed. False: somebody else is."""
        return file_locks.take(self.fd)

    @property
    def is_still_there(self) -> bool:
        """Its path still leads to it."""
        return file_locks.is_still_at(self.path, self.fd)

    def listen(self) -> socket.socket:
        """The socket, in place of one that a dead process may have left."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self.fd)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(self.within(SOCKET))
        server.listen(128)
        return server

    def connect(self, patience_s: float) -> socket.socket | None:
        """A connection that waits that long for each answer; None: nobody has ever listened here, or has gone and tidied up.

        Raises ConnectionRefusedError if a dead process has left its socket, and other OSErrors.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(patience_s)
        try:
            connection.connect(self.within(SOCKET))
        except FileNotFoundError:
            connection.close()
            return None
        except OSError:
            connection.close()
            raise
        return connection

    def clear(self) -> None:
        """Remove what lies there, and the directory."""
        for name in (SOCKET, LOG):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.fd)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def close(self) -> None:
        os.close(self.fd)


def directory(env: Mapping[str, str]) -> str:
    """The path of the directory, whether it is there or not."""
    for runtime in (env.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if os.path.isabs(runtime) and os.path.isdir(runtime):
            return os.path.join(runtime, "orch")
    return os.path.join(tempfile.gettempdir(), f"orch-{os.geteuid()}")


def is_there() -> bool:
    """Whether a warm process may be there: a cheap look, which most runs pay and nothing more."""
    return os.path.lexists(os.path.join(directory(os.environ), SOCKET))


def find(env: Mapping[str, str]) -> Place | None:
    """The directory, if it is there. Raises `UntrustedError`."""
    path = directory(env)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UntrustedError(f"{path} is not a directory of yours ({error.strerror}); remove it") from None
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        os.close(fd)
        raise UntrustedError(f"{path} belongs to another user; set XDG_RUNTIME_DIR to a directory of your own")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.close(fd)
        raise UntrustedError(f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 it, or remove it")
    return Place(path, fd)


def make(env: Mapping[str, str]) -> Place:
    """The directory, made if need be. Raises `UntrustedError` or OSError."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory(env), 0o700)
        place = find(env)
        if place is not None:  # or somebody has tidied up just now
            return place


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of whoever listens at the other end, or of whoever has connected: a fact of the kernel's."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def send(connection: socket.socket, message: Mapping[str, Any], fds: list[int]) -> None:
    """Send a message with descriptors, which are the other end's afterwards. Raises OSError."""
    try:
        data = json.dumps(message).encode("ascii")
        socket.send_fds(connection, [data], fds)
    finally:
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def closing(place: Place) -> Iterator[Place]:
    try:
        yield place
    finally:
        place.close()
