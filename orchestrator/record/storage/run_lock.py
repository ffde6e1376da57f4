"""Who runs a run: its `lock`, held (flock) by the controller as long as it lives.

Whether a run is alive is a fact of the kernel. The lock also says, as JSON, the controller's pid and host. Others may see the same file: on
another host that shares the file system, in a container into which the directory is mounted, or as root. So nobody gets a signal because
a file names it: the kernel is asked whether that process holds the lock.
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
"""How long a new controller waits for the lock: whoever looks whether the run is alive holds it for a moment."""
LOCK_BYTES = 4096
"""The most that is read of a lock."""
BLANK = b" " * 256
"""A lock that is held and says this: the run is being started, and its controller has not signed yet."""
SIGNED_S = 20.0
"""How long those who want to reach a controller wait for it to sign; it does so as soon as its modules are imported."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The controller of a run, as its lock says."""

    pid: int
    host: str


class RunLock:
    """The lock of the run in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "lock"
        self._fd: int | None = None

    def take(self, *, sign: bool = True) -> None:
        """Say that this process runs the run. Held until it ends, and every process that inherits it. Raises `OrchError` if another one
        does. Without `sign`: it holds the lock only until the run's controller does, and is not to be taken for that.
        """
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

    def hand_over(self) -> None:
        """Hold it no longer; another process has inherited it, and does."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def sign(self) -> None:
        """Say that it is this process who holds it, and not the one that it was forked from. Raises OSError."""
        assert self._fd is not None
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.pwrite(self._fd, text.ljust(os.fstat(self._fd).st_size).encode(), 0)  # in one go: it is read at any moment

    def release(self) -> None:
        """Say that the run is over, and its verdict is written."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # also for a process that was forked at the wrong moment, and inherited it by accident
            self.hand_over()

    def is_alive(self) -> bool:
        """The run has a controller, or is about to have one."""
        text = self._read_held()
        return text is not None and (text == BLANK or _parse(text) is not None)

    def controller_pid(self) -> int | None:
        """The pid of the controller, if it lives, wherever that is; None as well while it is only being started."""
        text = self._read_held()
        holder = _parse(text) if text is not None else None
        return holder.pid if holder else None

    def holder(self) -> Holder | None:
        """The controller, if it lives; one that is only being started is waited for.

        Raises `OrchError` if that takes too long, or if the lock is no file that can be read.
        """
        deadline = time.monotonic() + SIGNED_S
        while (text := self._read_held()) == BLANK:
            if time.monotonic() >= deadline:
                name = self._directory.name
                raise OrchError(f"the controller of {name} is being started, and has not come up for {SIGNED_S:g} s; try again")
            time.sleep(SIGNED_S / 1000)
        return _parse(text) if text is not None else None

    def _read_held(self) -> bytes | None:
        """What stands in the lock, if somebody holds it."""
        with contextlib.suppress(OSError), open_file(self._path) as file:  # what cannot be locked, nobody has locked
            if not _took(file.fileno(), fcntl.LOCK_SH):
                return file.read(LOCK_BYTES)
        return None

    def wait(self) -> None:
        """Return when no controller holds the run any more. Raises as `holder` does."""
        with contextlib.suppress(FileNotFoundError), open_file(self._path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def has_taken(self, holder: Holder, number: signal.Signals) -> bool:
        """Whether a signal that was sent to the controller is no longer on its way: a second one would be lost in it.

        Where there is no /proc: True. See signal(7), "Queueing and delivery semantics for standard signals".
        """
        try:
            text = Path(f"/proc/{holder.pid}/status").read_text()
        except OSError:
            return True
        pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", text, re.MULTILINE)
        return not any(int(mask, 16) >> (number - 1) & 1 for mask in pending)

    def send_signal(self, holder: Holder, number: signal.Signals) -> bool:
        """Send a signal to the controller. False: it has just ended.

        Raises `OrchError` for a run of another user's, who could have written any pid, and for a controller that is not on this machine.
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
        """The other user to whom the directory or the lock in it belongs; empty: they belong to the user who asks."""
        for path in (self._directory, self._path):
            owner = path.stat().st_uid
            if owner != os.geteuid():
                with contextlib.suppress(KeyError):
                    return pwd.getpwuid(owner).pw_name
                return f"user {owner}"
        return ""

    def _is_held_by(self, holder: Holder) -> bool:
        """Whether that process is one of this machine's, and holds the lock: see ``lock`` in proc_pid_fdinfo(5).

        Where there is no /proc, the host's name has to do.
        """
        if not os.path.isdir("/proc/self/fdinfo"):
            return holder.host == socket.gethostname()
        held, pid = self._path.stat(), holder.pid
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it has ended, or is another user's
            return False
        for fd in fds:
            with contextlib.suppress(OSError):  # it has just been closed
                is_open = os.path.samestat(held, os.stat(f"/proc/{pid}/fd/{fd}"))
                if is_open and re.search(r"^lock:.* FLOCK .* WRITE ", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.MULTILINE):
                    return True
        return False


def _parse(text: bytes) -> Holder | None:
    """What a lock says; None if that cannot be."""
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    pid, host = (said.get("pid"), said.get("host")) if isinstance(said, dict) else (None, None)
    return Holder(pid, host) if type(pid) is int and pid > 1 and isinstance(host, str) else None


def _took(fd: int, kind: int) -> bool:
    """Lock a file, if nobody else holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
