"""Who runs a run: its `lock`, held (flock) by the controller as long as it lives.

Whether a run is alive is a fact of the kernel, never a pid in a file: what stands in the lock is believed only while it is held. That is
JSON: the controller's pid, and where that is its pid. For others may see the same file: on another host that shares the file system, or
in a container into which the directory is mounted. An older orch wrote the bare number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worker.records import dataclass

from ..errors import OrchError
from .lines import clean

LOCK_S = 2.0
"""How long a new controller waits for the lock: whoever looks whether the run is alive holds it for a moment."""
LOCK_BYTES = 4096
"""The most that is read of a lock."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process has its pid, as far as the machine tells. `boot`: of this kernel, random(4); `pid_namespace`: pid_namespaces(7)."""

    host: str
    boot: str = ""
    pid_namespace: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """The controller of a run. `place` None: its lock does not say."""

    pid: int
    place: Place | None = None


def here() -> Place:
    """Where this process is. What is missing: there is no /proc, or not that file in it."""
    boot, namespace = "", 0
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return Place(socket.gethostname(), boot, namespace)


class RunLock:
    """The lock of the run in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "lock"
        self._fd: int | None = None

    def take(self) -> None:
        """Say that this process runs the run. Held until it ends, and every fork of it. Raises `OrchError` if another one does."""
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
        self.sign()

    def sign(self) -> None:
        """Say that it is this process who holds it, and not the one that it was forked from. Raises OSError."""
        assert self._fd is not None
        text = json.dumps({"pid": os.getpid(), **asdict(here())})
        os.pwrite(self._fd, text.ljust(os.fstat(self._fd).st_size).encode(), 0)  # in one go: it is read at any moment

    def release(self) -> None:
        """Say that the run is over, its verdict is written, or that a fork goes on with it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def controller_pid(self) -> int | None:
        """The pid of the controller, if it lives, wherever that is."""
        holder = self.holder()
        return holder.pid if holder else None

    def holder(self) -> Holder | None:
        """The controller, if it lives. Whoever wrote that is to be believed only if `is_ours`."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _took(fd, fcntl.LOCK_SH):
                return None
            return _parse(os.pread(fd, LOCK_BYTES, 0))
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
        """Send a signal to the controller. False: it has just ended. Raises `OrchError` for another user's, and for one elsewhere."""
        name, command = self._directory.name, f"kill -{number.name.removeprefix('SIG')} {holder.pid}"
        elsewhere = _describe_elsewhere(holder.place, here()) if holder.place else ""
        if elsewhere:
            raise OrchError(f"{name} runs {elsewhere}; there, give the same command, or {command}")
        strange = OrchError(f"{name} belongs to another user; if it is to be trusted all the same: {command}")
        if not self.is_ours():
            raise strange
        try:
            os.kill(holder.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise strange from None
        return True


def _describe_elsewhere(place: Place, this: Place) -> str:
    """Where that is, if it is not here. What only one of both knows is no difference."""
    if place.boot != this.boot if place.boot and this.boot else place.host != this.host:
        is_namesake = place.host == this.host
        return f"on another machine named {this.host}" if is_namesake else f"on {clean(place.host)}, not on this machine ({this.host})"
    if place.pid_namespace != this.pid_namespace and place.pid_namespace and this.pid_namespace:
        return f"in another container (pid namespace) of this machine (its host name: {clean(place.host)})"
    return ""


def _parse(text: bytes) -> Holder | None:
    """What a lock says; None if that cannot be."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    said = found if isinstance(found, dict) else {"pid": found}
    pid = said.get("pid")
    if type(pid) is not int or pid <= 1:
        return None
    host, boot, namespace = (said.get(name) for name in ("host", "boot", "pid_namespace"))
    if isinstance(host, str) and isinstance(boot, str) and isinstance(namespace, int):
        return Holder(pid, Place(host, boot, namespace))
    return Holder(pid)


def _took(fd: int, kind: int) -> bool:
    """Lock a file, if nobody else holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
