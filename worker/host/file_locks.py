"""Locks of files and directories (flock(2)), which the kernel lets go of when the last copy of their descriptor is closed."""

from __future__ import annotations

import contextlib
import fcntl
import os


def take(fd: int) -> bool:
    """Be the only one who has it locked. False: somebody else is."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_still_at(path: str, fd: int) -> bool:
    """Whether the path still leads to what is open as `fd`: it may have been removed, and made anew, before the lock was taken."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False
