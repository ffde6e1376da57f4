"""The file `lock` of a run: its controller holds it (flock) as long as the controller lives.

    no lock ──acquire(sign=False)──▶ blank: being started ──sign()──▶ {"pid": …, "host": …}: running ──release(), or death──▶ no lock

So the kernel knows whether a run is alive. Another host, a container or root may see the same file, where the pid means another process.
So before a process gets a signal, the kernel is asked whether this process holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from worker.fast_dataclass import dataclass

from ...errors import OrchError
from ..output.lines import clean
from .run_files import open_file

LOCK_S = 2.0
"""How long a new controller waits for the lock, in seconds: a process that checks whether the run is alive holds it for a moment."""
LOCK_BYTES = 4096
"""The most bytes that are read of a lock."""
BLANK = b" " * 256
"""The contents of a lock whose controller has not signed yet."""
SIGNED_S = 20.0
"""How long a command waits for a controller to sign, in seconds. The controller signs when its modules are imported."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has signed a lock: the controller of the run."""

    pid: int
    host: str


class RunLock:
    """The lock of the run in a directory. The methods from `is_alive` on are for other processes than the controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "lock"
        self._fd: int | None = None

    def acquire(self, *, sign: bool = True) -> None:
        """Locks the run until this process, and each process that inherits the descriptor, ends. Raises `OrchError` if the run is locked.

        `sign` False: this process only makes the run, and a controller will inherit the lock.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_S
            while not _try_lock(fd, fcntl.LOCK_EX):
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
        self._fd = fd
        if sign:
            self.sign()
        else:
            os.pwrite(fd, BLANK, 0)  # so that the disk has room for the signature

    def inherit(self, fd: int) -> None:
        """Hold the lock that the process which has started this one has taken, and has passed on as this descriptor."""
        os.set_inheritable(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor that holds the lock, for a process that is to inherit it."""
        assert self._fd is not None
        return self._fd

    def close(self) -> None:
        """Closes the descriptor. A process that has inherited the lock still holds it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def sign(self) -> None:
        """Writes pid and host of this process into the lock. Raises OSError."""
        assert self._fd is not None
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.pwrite(self._fd, text.ljust(os.fstat(self._fd).st_size).encode(), 0)  # one write: others may read at any time

    def release(self) -> None:
        """Unlocks the run. Call this when the verdict is written."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # also for a forked process that has inherited the descriptor
            self.close()

    def is_alive(self) -> bool:
        """Whether the run has a controller, or is being started."""
        text = self._read_held()
        return text == BLANK or _parse(text) is not None

    def controller_pid(self) -> int | None:
        """The pid of the controller, on its own host; None if there is none, or if it has not signed yet."""
        holder = _parse(self._read_held())
        return holder.pid if holder else None

    def holder(self) -> Holder | None:
        """The controller, or None. Waits for a controller that has not signed yet.

        Raises `OrchError` after `SIGNED_S` seconds, or if the lock cannot be read.
        """
        deadline = time.monotonic() + SIGNED_S
        while (text := self._read_held()) == BLANK:
            if time.monotonic() >= deadline:
                name = self._directory.name
                raise OrchError(f"the controller of {name} is being started, and has not come up for {SIGNED_S:g} s; try again")
            time.sleep(SIGNED_S / 1000)
        return _parse(text)

    def _read_held(self) -> bytes | None:
        """The contents of the lock; None if no process holds it."""
        with contextlib.suppress(OSError), open_file(self._path) as file:  # a file that cannot be locked is not locked
            if not _try_lock(file.fileno(), fcntl.LOCK_SH):
                return file.read(LOCK_BYTES)
        return None

    def wait(self) -> None:
        """Returns when no process holds the lock. Raises `OrchError` if the lock cannot be read."""
        with contextlib.suppress(FileNotFoundError), open_file(self._path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def has_received(self, holder: Holder, number: signal.Signals) -> bool:
        """Whether a signal to the controller is no longer pending; True without /proc. The kernel merges two pending signals into one.

        See signal(7), "Queueing and delivery semantics for standard signals".
        """
        try:
            text = Path(f"/proc/{holder.pid}/status").read_text()
        except OSError:
            return True
        pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", text, re.MULTILINE)
        return not any(int(mask, 16) >> (number - 1) & 1 for mask in pending)

    def send_signal(self, holder: Holder, number: signal.Signals) -> bool:
        """Sends a signal to the controller. Returns False if the controller has ended.

        Raises `OrchError` for the run of another user, who could have written any pid, and for a controller on another machine.
        """
        name, this = self._directory.name, socket.gethostname()
        owner = self._other_owner()
        if owner:
            raise OrchError(f"{name} belongs to {owner}: give the same command as that user")
        if not self._is_held_by(holder):
            if self.holder() != holder:
                return False
            where = f"process {holder.pid} on {clean(holder.host)}"
            raise OrchError(
                f"{name} is run by {where}, which is no process here ({this}): give the same command there, or in its container"
            )
        try:
            os.kill(holder.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _other_owner(self) -> str:
        """The other user who owns the directory or the lock; empty if this user owns both."""
        for path in (self._directory, self._path):
            owner = path.stat().st_uid
            if owner != os.geteuid():
                with contextlib.suppress(KeyError):
                    return pwd.getpwuid(owner).pw_name
                return f"user {owner}"
        return ""

    def _is_held_by(self, holder: Holder) -> bool:
        """Whether this process is on this machine and holds the lock (``lock`` in proc_pid_fdinfo(5)). Without /proc, the host decides."""
        if not os.path.isdir("/proc/self/fdinfo"):
            return holder.host == socket.gethostname()
        held, pid = self._path.stat(), holder.pid
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # the process has ended, or belongs to another user
            return False
        for fd in fds:
            with contextlib.suppress(OSError):  # the process may close the descriptor at any time
                is_open = os.path.samestat(held, os.stat(f"/proc/{pid}/fd/{fd}"))
                if is_open and re.search(r"^lock:.* FLOCK .* WRITE ", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.MULTILINE):
                    return True
        return False


def _parse(text: bytes | None) -> Holder | None:
    """The process that a lock names; None for any other text."""
    try:
        found: Any = json.loads(text or b"")
    except (ValueError, RecursionError):
        return None
    pid, host = (found.get("pid"), found.get("host")) if isinstance(found, dict) else (None, None)
    return Holder(pid, host) if type(pid) is int and pid > 1 and isinstance(host, str) else None


def _try_lock(fd: int, kind: int) -> bool:
    """Locks a file without waiting. Returns False if another process holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
