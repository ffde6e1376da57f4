"""The socket of a user's warm process, in a directory that no other user can enter.

The directory is ``$XDG_RUNTIME_DIR/orch``, or ``/run/user/UID/orch``, or ``orch-UID`` in the directory for temporary files. orch trusts
the directory only if this user owns it and it is closed to others (0700). orch opens it once and then uses the descriptor only: so the
directory that was checked is the one that is used, and its path may be longer than a socket's address (108 bytes).

A message is one JSON object in one line. Descriptors come with the first byte of a request.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ... import clock
from .. import file_locks

SOCKET = "warm.sock"
LOG = "warm.log"
PATIENCE_S = clock.patience(4.0)
"""How long an answer of the warm process may take."""
_PART_BYTES = 64 * 1024
_CREDENTIALS = struct.Struct("iII")  # struct ucred


class UntrustedError(Exception):
    """The directory is not this user's alone, or another user's process listens there; the message says what to do."""


class WarmDirectory:
    """The directory, checked and open. A context manager: it is closed at the end."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def __enter__(self) -> WarmDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def lock(self) -> bool:
        """Lock the directory until this descriptor and all its copies are closed. False: another process has locked it."""
        return file_locks.acquire(self.fd)

    @property
    def is_still_there(self) -> bool:
        """The path still leads to this directory."""
        return file_locks.is_still_at(self.path, self.fd)

    @property
    def _address(self) -> str:
        return f"/proc/self/fd/{self.fd}/{SOCKET}"

    def listen(self) -> socket.socket:
        """Make the socket, in place of one that a dead process may have left."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self.fd)
        server = socket.socket(socket.AF_UNIX)
        server.bind(self._address)
        server.listen(128)
        return server

    def connect(self) -> socket.socket | None:
        """Connect to the warm process, without blocking. None: there is no process, and no socket of an earlier one.

        Raises `UntrustedError`; ConnectionRefusedError if a dead process has left its socket; BlockingIOError if the process accepts
        no connection; other OSErrors.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self._address)
        except FileNotFoundError:
            connection.close()
            return None
        except OSError:
            connection.close()
            raise
        if peer(connection)[1] != os.geteuid():
            connection.close()
            raise UntrustedError(f"the process at {self.path} belongs to another user")
        return connection

    def clear(self) -> None:
        """Remove the socket, the log and the directory."""
        for name in (SOCKET, LOG):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.fd)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def directory(env: Mapping[str, str]) -> str:
    """The path of the directory, whether it exists or not."""
    for runtime in (env.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if os.path.isabs(runtime) and os.path.isdir(runtime):
            return os.path.join(runtime, "orch")
    import tempfile  # most machines have one of the directories above

    return os.path.join(tempfile.gettempdir(), f"orch-{os.geteuid()}")


def find(path: str) -> WarmDirectory | None:
    """The directory, open; None if it does not exist. Raises `UntrustedError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UntrustedError(f"{path} is not a directory of yours ({error.strerror}); remove it") from None
    found = os.fstat(fd)
    trouble = ""
    if found.st_uid != os.geteuid():
        trouble = f"{path} belongs to another user; set XDG_RUNTIME_DIR to a directory of your own"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        trouble = f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 it, or remove it"
    if trouble:
        os.close(fd)
        raise UntrustedError(trouble)
    return WarmDirectory(path, fd)


def make(path: str) -> WarmDirectory:
    """The directory, open, made if it does not exist. Raises `UntrustedError` or OSError."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = find(path)
        if found is not None:  # or another process has removed it just now
            return found


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the other end, or has connected, from the kernel."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Raises OSError."""
    connection.sendall(encode(message))


def receive(connection: socket.socket, most_fds: int = 0) -> tuple[Any, Sequence[int]]:
    """The next message, None if the other end has closed, and the descriptors that came with it. Raises OSError or ValueError."""
    data, fds, _, _ = socket.recv_fds(connection, _PART_BYTES, most_fds)
    while data and not data.endswith(b"\n") and (part := connection.recv(_PART_BYTES)):
        data += part
    return json.loads(data) if data else None, fds
