"""Locks of files and directories (flock(2)). The kernel releases a lock when the last copy of its descriptor is closed."""

from __future__ import annotations

import contextlib
import fcntl
import os


def acquire(fd: int) -> bool:
    """Lock the file, if no other process has locked it. Returns whether it is locked now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_still_at(path: str, fd: int) -> bool:
    """Whether the file at `path` is the one that is open as `fd`: it may have been removed and made anew before the lock was acquired."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False
