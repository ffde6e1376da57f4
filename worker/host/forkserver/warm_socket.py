"""The socket of a user's warm process, in a directory of this user.

The directory is ``$XDG_RUNTIME_DIR/orch``, or ``/run/user/UID/orch``, or ``orch-UID`` in the directory for temporary files. orch trusts
the directory only if this user owns it and it is closed to others (0700). Both ends also ask the kernel for the user of the other end,
before they send or read anything.

The socket has a path, not a name in Linux's abstract namespace: an abstract name is open to every process of the network namespace, so
also to the containers and sandboxes of this user, which could then run programs outside.

A message is one JSON object; a socket of packets keeps messages apart. No program that is executed inherits a message's descriptors.
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

from ...machine import clock
from ...machine.memfd import keep_in_memory

SOCKET = "warm"
PATIENCE_S = clock.patience(4.0)
"""How long an answer of the warm process may take."""
MESSAGE_BYTES = 64 * 1024
_LONGEST = 1 << 28
"""Bytes of a description. It has all variables of a caller, of which the kernel takes 6 MiB, and six bytes of JSON for an odd one."""
_MOST_FDS = 3
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


def connect(directory: str) -> socket.socket:
    """Connect to the warm process, without blocking.

    Raises FileNotFoundError if there is no warm process, ConnectionRefusedError if it was killed, BlockingIOError if it accepts no
    connection, and other OSErrors.
    """
    check(directory)
    connection = open_socket()
    try:
        connection.setblocking(False)
        connection.connect(os.path.join(directory, SOCKET))
        if peer(connection)[1] != os.geteuid():
            raise PermissionError(f"the process at {directory} belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def open_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the other end, or has connected, from the kernel."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


class EarlyRequest:
    """A request for an agent, made before the caller knows the run: the warm process forks the agent meanwhile."""

    def __init__(self) -> None:
        """Raises OSError, as `connect` does."""
        self._connection: socket.socket | None = _ask_for_agent()

    def take(self) -> socket.socket:
        """The connection on which the request was made; the caller closes it."""
        connection, self._connection = self._connection, None
        assert connection is not None
        return connection

    def withdraw(self) -> None:
        """Take the request back, unless it was taken: the forked agent ends."""
        if self._connection is not None:
            self._connection.close()


def ask_for_agent(description: Mapping[str, Any], channel: int, stderr: int, early: EarlyRequest | None = None) -> socket.socket:
    """Ask the warm process for an agent of the run, without waiting. `early`: if asked already. Raises OSError as `connect`."""
    connection = early.take() if early is not None else _ask_for_agent()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has refused already, or died; the answer says which
        send(connection, {}, [channel, stderr], description)
    return connection


def _ask_for_agent() -> socket.socket:
    connection = connect(directory(os.environ))
    try:
        send(connection, {"ask": "agent"})
    except OSError:
        connection.close()
        raise
    return connection


def send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = (), more: Mapping[str, Any] | None = None) -> None:
    """Send a message. `more`, of any length, is sent in memory, as one more descriptor. Raises OSError."""
    data = json.dumps(message).encode("ascii")
    if more is None:
        socket.send_fds(connection, [data], fds)
        return
    in_memory = keep_in_memory(json.dumps(more).encode("ascii"))
    try:
        socket.send_fds(connection, [data], [*fds, in_memory])
    finally:
        os.close(in_memory)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """The next message, None if the other end has closed, and the descriptors that came with it. Raises OSError or ValueError."""
    data, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, _MOST_FDS)
    try:
        for fd in fds:
            os.set_inheritable(fd, False)
        return json.loads(data) if data else None, fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def read_in_memory(fd: int) -> Any:
    """The `more` of a message. Raises ValueError for a descriptor of anything but a file, such as a pipe that no one writes to."""
    with os.fdopen(fd, "rb"):
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
            raise ValueError("the description is no file in memory, or too long")
        return json.loads(os.pread(fd, found.st_size, 0))
