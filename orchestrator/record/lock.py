"""Who runs a run: its `lock`, held (flock) by the controller as long as it lives.

Whether a run is alive is a fact of the kernel, never a pid in a file: the pid that stands in the lock is believed only while it is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from ..errors import OrchError

LOCK_S = 0.2
"""How long a new controller waits for the lock: whoever looks whether the run is alive holds it for a moment."""


class RunLock:
    """The lock of the run in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "lock"
        self._fd: int | None = None

    def take(self) -> None:
        """Say that this process runs the run. Held until the process ends. Raises `OrchError` if another one does."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_S
            while not _took(fd, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    name = self._directory.name
                    raise OrchError(f"{name} already has a controller; orch down {name} ends it")
                time.sleep(LOCK_S / 20)
        except OSError as error:
            os.close(fd)
            reason = error.strerror or error
            raise OrchError(f"{self._path} cannot be locked: {reason}; name another directory with --run-dir or ORCH_HOME") from None
        except OrchError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Say that the run is over: its verdict is written."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def controller_pid(self) -> int | None:
        """The pid of the controller, if it lives. Whoever wrote it is to be believed only if `is_ours`."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _took(fd, fcntl.LOCK_SH):
                return None
            text = os.pread(fd, 32, 0)
            return int(text) if text.isdigit() and int(text) > 1 else None
        except OSError:  # what cannot be locked, nobody has locked
            return None
        finally:
            os.close(fd)

    def is_ours(self) -> bool:
        """Directory and lock belong to the user who asks, or root asks: the pid in a file of somebody else's may be any process."""
        user = os.geteuid()
        try:
            owners = {path.stat().st_uid for path in (self._directory, self._path)}
        except OSError:
            return False
        return owners == {user} or user == 0

    def wait(self) -> None:
        """Return when no controller holds the run any more."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def send_signal(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal to the controller. False: it has just ended. Raises `OrchError` for another user's."""
        word = number.name.removeprefix("SIG")
        strange = OrchError(f"{self._directory.name} belongs to another user; if it is to be trusted all the same: kill -{word} {pid}")
        if not self.is_ours():
            raise strange
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise strange from None
        return True


def _took(fd: int, kind: int) -> bool:
    """Lock a file, if nobody else holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
