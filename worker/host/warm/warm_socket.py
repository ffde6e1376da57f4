"""The socket of a user's warm process, in a directory of this user.

The directory is ``$XDG_RUNTIME_DIR/orch``, or ``/run/user/UID/orch``, or ``orch-UID`` in the directory for temporary files. orch trusts
the directory only if this user owns it and it is closed to others (0700). Both ends also ask the kernel for the user of the other end,
before they send or read anything.

The socket has a path, not a name in Linux's abstract namespace: an abstract name is open to every process of the network namespace, so
also to the containers and sandboxes of this user, which could then run programs outside.

A message is one JSON object in one line. Descriptors come with the first byte of a request. No program that is executed inherits them.
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
from ..memfd import keep_in_memory

SOCKET = "warm"
PATIENCE_S = clock.patience(4.0)
"""How long an answer of the warm process may take."""
_PART_BYTES = 64 * 1024
_CREDENTIALS = struct.Struct("iII")  # struct ucred


def directory(env: Mapping[str, str]) -> str:
    """The path of the directory, whether it exists or not."""
    for runtime in (env.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if os.path.isabs(runtime) and os.path.isdir(runtime):
            return os.path.join(runtime, "orch")
    import tempfile  # most machines have one of the directories above

    return os.path.join(tempfile.gettempdir(), f"orch-{os.geteuid()}")


def is_there(env: Mapping[str, str]) -> bool:
    """There is a warm process, or a killed one has left its socket."""
    return os.path.lexists(os.path.join(directory(env), SOCKET))


def check(directory: str) -> None:
    """Raises OSError, whose message says what to do, unless the directory exists and is this user's alone."""
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        what = f"{directory} is not a directory of yours that is closed to others (0700)"
        raise PermissionError(f"{what}; remove it, or set XDG_RUNTIME_DIR to a directory of your own")


_ahead: list[socket.socket] = []


def connect_ahead() -> None:
    """Connect now for the first `connect` of this process, so that the warm process looks at its files while this one imports orch."""
    with contextlib.suppress(OSError):  # `connect` reports an error, if this process has a use for the warm process
        _ahead.append(connect(directory(os.environ)))


def connect(directory: str) -> socket.socket:
    """Connect to the warm process, without blocking.

    Raises FileNotFoundError if there is no warm process, ConnectionRefusedError if it was killed, BlockingIOError if it accepts no
    connection, and other OSErrors.
    """
    if _ahead:
        return _ahead.pop()
    check(directory)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(os.path.join(directory, SOCKET))
        if peer(connection)[1] != os.geteuid():
            raise PermissionError(f"the process at {directory} belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the other end, or has connected, from the kernel."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Raises OSError."""
    connection.sendall(_encode(message))


def request_agent(connection: socket.socket, description: Mapping[str, Any], channel: int, stderr: int) -> None:
    """Request an agent, without waiting, however long the description of the run is (see `warm_server`). Raises OSError."""
    in_memory = keep_in_memory(_encode(description))
    try:
        socket.send_fds(connection, [_encode({"ask": "agent"})], [channel, stderr, in_memory])
    finally:
        os.close(in_memory)


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"


def receive(connection: socket.socket, most_fds: int = 0) -> tuple[Any, Sequence[int]]:
    """The next message, None if the other end has closed, and the descriptors that came with it. Raises OSError or ValueError."""
    data, fds, _, _ = socket.recv_fds(connection, _PART_BYTES, most_fds)
    try:
        for fd in fds:
            os.set_inheritable(fd, False)
        while data and not data.endswith(b"\n") and (part := connection.recv(_PART_BYTES)):
            data += part
        return json.loads(data) if data else None, fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
