"""A directory of an agent's own, on a host that does not see the run directory: the tasks' output waits there to be sent.

It goes when its agent ends. One whose agent was killed goes when the next agent comes: a lock says whether anybody is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

_PREFIX = "orch-agent-"
_locks: list[int] = []


def make() -> str:
    """A new directory, after taking away those of the dead. Raises OSError."""
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        _remove_if_dead(path)
    path = tempfile.mkdtemp(prefix=_PREFIX)
    _locks.append(_lock(path))  # held until this process ends
    return path


def _remove_if_dead(path: str) -> None:
    with contextlib.suppress(OSError):  # somebody else's, or alive, or being made at this moment
        if os.stat(path).st_uid == os.geteuid() and os.path.exists(os.path.join(path, ".lock")):
            fd = _lock(path)
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)


def _lock(path: str) -> int:
    fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
