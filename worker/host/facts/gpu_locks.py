"""Finds which runs of this user hold which GPUs of this host.

Each GPU has a file in ``orch-gpus-UID`` in ``/tmp``, whatever ``TMPDIR`` is: jobs of a scheduler often have one of their own, and must see
each other. (``$XDG_RUNTIME_DIR`` is removed when its user logs out, but a detached run goes on.) An agent whose tasks have the GPU keeps
this file locked: exclusively, or together with other runs that share. The kernel releases the locks of a dead agent. The files stay:
removing a file while another agent opens it would be a race. The locks are open file description locks (fcntl(2)): unlike flock(2)'s,
they can be examined without being taken. Runs of other users have directories of their own: orch does not see them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Collection

from ...protocol.messages import GpuHolder, TakeGpus

PLACE = "/tmp"
_LOCK = struct.Struct("hhqqi4x")
"""Linux's ``struct flock``: type, whence, start, length, pid."""


class GpuLocks:
    """The GPUs that one agent holds. `uuids`: all GPUs of the host."""

    def __init__(self, uuids: Collection[str] = ()) -> None:
        self.problem = ""
        """Why GPUs cannot be locked here; empty: they can."""
        self._uuids = uuids
        self._held: list[int] = []

    def holders(self) -> tuple[GpuHolder, ...]:
        """The GPUs that other agents hold now."""
        try:
            return tuple(holder for uuid in self._uuids for holder in _find_holders(uuid))
        except OSError as error:
            self._fail(error)
            return ()

    def acquire(self, run_id: str, order: TakeGpus) -> tuple[GpuHolder, ...]:
        """Hold these GPUs, and no others. Empty: they are held. Else other agents prevent it: all GPUs that they hold."""
        self.close()
        while not self.problem and not self._lock_all(run_id, order):
            if others := self.holders():
                return others
        return ()

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()

    def _lock_all(self, run_id: str, order: TakeGpus) -> bool:
        """False: another agent holds one of these GPUs, and this agent holds none."""
        try:
            for uuid in sorted({*order.alone, *order.shared}):
                self._held.append(fd := _open(uuid))
                if _lock(fd, fcntl.F_WRLCK):
                    os.truncate(fd, 0)
                elif not (uuid in order.shared and _lock(fd, fcntl.F_RDLCK)):
                    self.close()
                    return False
                os.write(fd, f"{os.getpid()} {run_id}\n".encode())
                if uuid in order.shared:
                    _lock(fd, fcntl.F_RDLCK)
        except OSError as error:
            self.close()
            self._fail(error)
        return True

    def _fail(self, error: OSError) -> None:
        self.problem = f"cannot lock GPUs, so two runs may share one by accident: {error.strerror or error} ({_directory()})"


def _directory() -> str:
    place = PLACE
    if not os.access(place, os.W_OK | os.X_OK):
        import tempfile  # hardly any host needs this import

        place = tempfile.gettempdir()
    return os.path.join(place, f"orch-gpus-{os.geteuid()}")


def _open(uuid: str) -> int:
    """The file of a GPU, which is made if necessary. Raises OSError."""
    path, name = _directory(), uuid.replace("/", "_")  # the UUID of a part may be MIG-GPU-…/1/0
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"it must be a directory that is yours, and closed to others: it has mode {stat.S_IMODE(found.st_mode):04o}")
    return os.open(os.path.join(path, name), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _lock(fd: int, kind: int) -> bool:
    """Lock a file, or change its lock. False: the lock of another agent prevents this."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        return False
    return True


def _find_holders(uuid: str) -> list[GpuHolder]:
    """The agents that hold a GPU: none, one, or several that share. Runs that have ended, and shared the GPU with these, are named, too."""
    with open(_open(uuid), encoding="utf-8") as file:
        in_the_way = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)))[0]
        if in_the_way == fcntl.F_UNLCK:
            return []
        holders = [line.rstrip().partition(" ") for line in file] or [("0", " ", "unknown")]  # the agent has not written its line yet
    return [GpuHolder(uuid, run_id, int(pid), in_the_way == fcntl.F_RDLCK) for pid, _, run_id in holders]
