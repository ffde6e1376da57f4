"""Which of this user's runs has which GPUs of this host: a file for each agent whose tasks have any, locked while that agent lives.

The files lie in ``orch-gpus-UID`` in the directory for temporary files: the one of ``$XDG_RUNTIME_DIR`` goes when its user logs out,
and a detached run goes on. Whoever looks at them or adds one holds the lock of the directory (flock(2)), so that a claim is taken as a
whole or not at all. The kernel lets go of a dead agent's lock; what it leaves behind, the next one removes. Other users' runs have
directories of their own, and are not seen.
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
"""How long the directory may be locked by somebody else, who needs it for less than a millisecond."""


class Claims:
    """One agent's. `trouble`: why there is nothing to be seen and nothing to be claimed here; empty: there is not."""

    def __init__(self) -> None:
        self.trouble = ""
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._fd: int | None = None

    def others(self) -> tuple[GpuHolder, ...]:
        """What other agents hold now."""
        try:
            if not os.path.lexists(_directory()):
                return ()
            with _locked() as directory:
                return tuple(self._holders(directory))
        except OSError as error:
            self._fail(error)
            return ()

    def take(self, run_id: str, order: TakeGpus) -> tuple[GpuHolder, ...]:
        """Hold these GPUs, and none of those that were held before. The answer: who is in the way, and then none is held."""
        self.close()
        if not (order.alone or order.shared) or self.trouble:
            return ()
        try:
            with _locked() as directory:
                others = tuple(self._holders(directory))
                wanted = {*order.alone, *order.shared}
                if any(other.uuid in wanted and not (other.shares and other.uuid in order.shared) for other in others):
                    return others
                self._fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                claim = {"run": run_id, "pid": os.getpid(), "alone": order.alone, "shared": order.shared}
                os.write(self._fd, json.dumps(claim).encode())
        except OSError as error:
            self._fail(error)
        return ()

    def close(self) -> None:
        """Hold none any more."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError), _locked() as directory:
            os.unlink(self._name, dir_fd=directory)
        os.close(self._fd)
        self._fd = None

    def _fail(self, error: OSError) -> None:
        what = "which GPUs other runs have cannot be seen, and they do not see which this one has"
        self.trouble = f"{what}: {error.strerror or error} ({_directory()})"

    def _holders(self, directory: int) -> Iterator[GpuHolder]:
        """Those who are alive. What the dead have left is removed."""
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    if file_locks.take(fd):
                        os.unlink(name, dir_fd=directory)
                    else:
                        yield from _holders_of(os.pread(fd, 1 << 20, 0))
                finally:
                    os.close(fd)


def _holders_of(text: bytes) -> Iterator[GpuHolder]:
    try:
        claim: dict[str, Any] = json.loads(text)
        for key in ("alone", "shared"):
            for uuid in claim[key]:
                yield GpuHolder(str(uuid), str(claim["run"]), int(claim["pid"]), key == "shared")
    except (ValueError, TypeError, KeyError):  # its disk was full
        return


def _directory() -> str:
    import tempfile  # wanted on hosts with GPUs only

    return os.path.join(tempfile.gettempdir(), f"orch-gpus-{os.geteuid()}")


@contextlib.contextmanager
def _locked() -> Iterator[int]:
    """The directory, open and ours alone for a moment; made if need be, and removed if it is empty afterwards. Raises OSError."""
    path, until = _directory(), time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the last one has just gone
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"it must be yours, and closed to others: it has mode {stat.S_IMODE(found.st_mode):04o}")
            while not file_locks.take(fd):
                if time.monotonic() >= until:
                    raise TimeoutError("it is locked by somebody who does not let go of it")
                time.sleep(0.002)
            if not file_locks.is_still_at(path, fd):
                continue  # it was removed while we waited for it
            yield fd
            with contextlib.suppress(OSError):
                os.rmdir(path)
            return
        finally:
            os.close(fd)
