"""Which runs of this user hold which GPUs of this host.

Each agent whose tasks have GPUs keeps a file, and locks the file while the agent lives. The files lie in ``orch-gpus-UID`` in the directory
for temporary files. (``$XDG_RUNTIME_DIR`` is removed when its user logs out, but a detached run goes on.) An agent locks the directory
(flock(2)) to read the files or to add one, so an agent gets all GPUs that it asks for, or none. The kernel releases the locks of a dead
agent; the next agent removes the file. Runs of other users have directories of their own: orch does not see them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from ...protocol.messages import GpuHolder, TakeGpus
from .. import file_locks

PATIENCE_S = 5.0
"""Another agent may hold the directory's lock this long, in seconds. An agent needs the lock for less than a millisecond."""


class GpuLocks:
    """The GPUs that one agent holds."""

    def __init__(self) -> None:
        self.problem = ""
        """Why GPUs cannot be locked here; empty: they can."""
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._fd: int | None = None

    def holders(self) -> tuple[GpuHolder, ...]:
        """The GPUs that any agent holds now."""
        try:
            if not os.path.lexists(_directory()):
                return ()
            with _locked() as directory:
                return tuple(self._read_holders(directory))
        except OSError as error:
            self._fail(error)
            return ()

    def acquire(self, run_id: str, order: TakeGpus) -> tuple[GpuHolder, ...]:
        """Hold these GPUs in place of those that this agent held before. Returns the holders that prevent this; then no GPU is held."""
        self.close()
        if not (order.alone or order.shared) or self.problem:
            return ()
        try:
            with _locked() as directory:
                others = tuple(self._read_holders(directory))
                wanted = {*order.alone, *order.shared}
                if any(other.uuid in wanted and not (other.shares and other.uuid in order.shared) for other in others):
                    return others
                self._fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = {"run": run_id, "pid": os.getpid(), "alone": order.alone, "shared": order.shared}
                os.write(self._fd, json.dumps(held).encode())
        except OSError as error:
            self._fail(error)
        return ()

    def close(self) -> None:
        """Release all GPUs."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError), _locked() as directory:
            os.unlink(self._name, dir_fd=directory)
        os.close(self._fd)
        self._fd = None

    def _fail(self, error: OSError) -> None:
        what = "which GPUs other runs have cannot be seen, and they do not see which this one has"
        self.problem = f"{what}: {error.strerror or error} ({_directory()})"

    def _read_holders(self, directory: int) -> Iterator[GpuHolder]:
        """The holders that are alive. The files of dead agents are removed."""
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    if file_locks.acquire(fd):
                        os.unlink(name, dir_fd=directory)
                    else:
                        yield from _parse(os.pread(fd, 1 << 20, 0))
                finally:
                    os.close(fd)


def _parse(text: bytes) -> Iterator[GpuHolder]:
    with contextlib.suppress(ValueError, TypeError, KeyError):  # the disk was full when the file was written
        held: dict[str, Any] = json.loads(text)
        for key in ("alone", "shared"):
            for uuid in held[key]:
                yield GpuHolder(str(uuid), str(held["run"]), int(held["pid"]), key == "shared")


def _directory() -> str:
    import tempfile  # only hosts with GPUs need this import

    return os.path.join(tempfile.gettempdir(), f"orch-gpus-{os.geteuid()}")


@contextlib.contextmanager
def _locked() -> Iterator[int]:
    """The directory, open and locked. It is made if necessary, and removed afterwards if it is empty. Raises OSError."""
    path, until = _directory(), time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another agent has just removed the directory
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"it must be yours, and closed to others: it has mode {stat.S_IMODE(found.st_mode):04o}")
            while not file_locks.acquire(fd):
                if time.monotonic() >= until:
                    raise TimeoutError("another process keeps it locked")
                time.sleep(0.002)
            if not file_locks.is_still_at(path, fd):
                continue  # the directory was removed before the lock was acquired
            yield fd
            with contextlib.suppress(OSError):
                os.rmdir(path)
            return
        finally:
            os.close(fd)
