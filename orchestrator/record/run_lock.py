"""Tells who runs a run, and how others reach it: its directory and two files in it, which its controller holds as long as it lives.

    lock        locked (flock), so the kernel knows whether the run is alive. Inside: pid and host of the controller, for people, and
                which directory it is, so that a copy of the directory is known for a copy
    .           the directory is locked too, where the file system can lock one (NFS cannot): no one replaces a directory by accident
    control     a named pipe from which the controller reads requests (orchestrator/control/requests.py)

Anyone who makes the run opens all three and passes them on to the controller. So a request that comes early waits in the pipe.
No request needs a pid: on another host or in a container the pid in the lock means another process, and a user can write any pid there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import OrchError
from .run_files import open_file, open_own
from .text.lines import clean

LOCK_S = 2.0
"""How long a new controller waits for the lock, in seconds: a process that checks whether the run is alive holds it for a moment."""
LOCK_BYTES = 4096
"""The most bytes that are read of a lock."""

_UNREACHED = {
    errno.ENXIO: "no process of this machine reads its requests; give the same command where it runs",
    errno.ENOENT: "its directory holds no named pipe for requests (not every file system can); kill ends its controller and the run",
    errno.EAGAIN: "it has not read its last requests; try again",
}


class RunLock:
    """The lock of a run, and the pipe. `place`: gives its directory. From `is_held` on, for other processes than the controller."""

    def __init__(self, place: Callable[[], Path]) -> None:
        self._place = place
        self.fds: tuple[int, ...] = ()
        """What holds the run: the descriptors of the lock, of the directory and, if the file system has named pipes, of the pipe."""

    @property
    def _path(self) -> Path:
        return self._place() / "lock"

    @property
    def _pipe(self) -> Path:
        return self._place() / "control"

    def acquire(self, patience_s: float = LOCK_S) -> None:
        """Holds the run until this process, and each process that inherits the descriptors, ends. Raises `OrchError` if the run is held."""
        try:
            self._open()
            deadline = time.monotonic() + patience_s
            while not try_lock(self.fds[0], fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    self.close()
                    name = self._place().name
                    raise OrchError(f"{name} already has a controller; orch down {name} ends it")
                time.sleep(LOCK_S / 20)
            is_alone = True
            with contextlib.suppress(OSError):  # not every file system locks a directory
                while not (is_alone := try_lock(self.fds[1], fcntl.LOCK_EX)) and time.monotonic() < deadline:
                    time.sleep(LOCK_S / 20)
            if not is_alone:  # somebody has removed or replaced the lock of a run that goes on
                self.close()
                raise OrchError(f"{self._place().name} already has a controller, though its file lock is another one now")
        except OSError as error:
            self.close()
            reason = error.strerror or error
            raise OrchError(f"{self._path} cannot be locked: {reason}; name another directory with --home or ORCH_HOME") from None

    def _open(self) -> None:
        """Opens the lock, the directory and the pipe. Raises OSError, and `OrchError` if another kind of file lies in their place."""
        try:
            self.fds = (_no_stream(open_own(self._path, os.O_RDWR)),)
            self.fds += (_no_stream(os.open(self._place(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)),)
            with contextlib.suppress(OSError):  # there is one; or, without a pipe, the run goes on and takes no requests
                os.mkfifo(self._pipe, 0o600)
            with contextlib.suppress(FileNotFoundError):
                # Before the lock: a program that sees the lock held can ask. Open for writing too, so the pipe never comes to an end.
                self.fds += (_no_stream(os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)),)
                self._check_pipe(self.fds[-1])
        except OrchError:
            self.close()
            raise

    def inherit(self, fds: Collection[int]) -> None:
        """Hold the run by the `fds` of the process that has acquired it and has started this process."""
        for fd in fds:
            os.set_inheritable(fd, False)
        self.fds = tuple(fds)

    def close(self) -> None:
        """Closes the descriptors. A process that has inherited them still holds the run."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()

    @property
    def requests(self) -> int | None:
        """The descriptor of the pipe, for the process that holds the run; None: the file system has no named pipes."""
        return self.fds[2] if len(self.fds) > 2 else None

    def sign(self) -> None:
        """Writes pid and host of this process, and the directory, into the lock. Raises OSError."""
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "directory": self._directory()})
        os.ftruncate(self.fds[0], 0)
        os.pwrite(self.fds[0], text.encode(), 0)

    def release(self) -> None:
        """Unlocks the run. Call this when the verdict is written."""
        if self.fds:
            for fd in self.fds[:2]:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)  # also for a forked process that has inherited the descriptor
            with contextlib.suppress(OSError):
                self._pipe.unlink(missing_ok=True)
            self.close()

    def is_held(self) -> bool:
        """True if a process holds the run, its controller or anyone who starts it, as far as the kernel of this machine knows."""
        if self._read_held() is not None:
            return True
        with contextlib.suppress(OSError), _open_directory(self._place()) as fd:  # somebody may have removed or replaced the lock
            return not try_lock(fd, fcntl.LOCK_SH)
        return False

    def is_own(self) -> bool:
        """True if this is the directory whose controller has signed the lock, and not a copy of it."""
        with contextlib.suppress(OSError, OrchError), open_file(self._path) as file:
            found = _parse(file.read(LOCK_BYTES))
            return found is not None and found.get("directory") == self._directory()
        return False

    def _directory(self) -> list[int]:
        """Return what the kernel calls the directory: its device and its inode. A copy has another inode."""
        found = self._place().stat()
        return [found.st_dev, found.st_ino]

    def controller_pid(self) -> int | None:
        """The pid of the controller, on its own host, as the lock has it; None if there is none, or if it is not up yet."""
        pid, _ = _controller(self._read_held())
        return pid

    def describe_controller(self) -> str:
        """`` (process 4711 on hostA)``, as the lock has it, for a message; empty if the lock names no one."""
        pid, host = _controller(self._read_held())
        return f" (process {pid} on {clean(host)})" if pid is not None else ""

    def wait(self) -> None:
        """Returns when no process holds the run. Raises `OrchError` if the lock cannot be read."""
        with contextlib.suppress(FileNotFoundError), open_file(self._path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        with contextlib.suppress(OSError), _open_directory(self._place()) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)

    def send(self, line: bytes) -> bool:
        """Write a line of at most PIPE_BUF bytes. False: there is no controller. Raises `OrchError` if it is on another machine."""
        try:
            fd = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._check_pipe(fd)
                os.write(fd, line)
            finally:
                os.close(fd)
        except OSError as error:
            if not self.is_held():
                return False
            why = _UNREACHED.get(error.errno or 0) or f"{self._pipe}: {error.strerror or error}"
            raise OrchError(f"{self._place().name}{self.describe_controller()} cannot be asked: {why}") from None
        return True

    def _check_pipe(self, fd: int) -> None:
        """Raises `OrchError` for anything but a named pipe of this user, or for root of the directory's owner: others may have made it."""
        opened, users = os.fstat(fd), {os.geteuid(), os.geteuid() or self._place().stat().st_uid}
        if not stat.S_ISFIFO(opened.st_mode) or opened.st_uid not in users:
            raise OrchError(f"{self._pipe} is no named pipe of the run's owner, and orch neither reads nor writes it; remove it")

    def _read_held(self) -> bytes | None:
        """The contents of the lock; None if no process holds it."""
        with contextlib.suppress(OSError), open_file(self._path) as file:  # a file that cannot be locked is not locked
            if not try_lock(file.fileno(), fcntl.LOCK_SH):
                return file.read(LOCK_BYTES)
        return None


def _no_stream(fd: int) -> int:
    """The descriptor, or a copy if it is that of a standard stream, as where a daemon has closed these: a child would get another stdin."""
    if fd > 2:
        return fd
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return copy


def _controller(text: bytes | None) -> tuple[int | None, str]:
    """Pid and host of the controller that has signed a lock; None and "" for any other text."""
    match _parse(text):
        case {"pid": int(pid), "host": str(host)} if pid > 1:
            return pid, host
    return None, ""


def _parse(text: bytes | None) -> dict[str, Any] | None:
    """Return what a lock says; None if it says nothing that orch has written."""
    try:
        found: Any = json.loads(text or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@contextlib.contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    """A descriptor of a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int, kind: int) -> bool:
    """Locks a file without waiting. Returns False if another process holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
