"""Defines what orch sets for the process that it runs in: numbers of descriptors, the end with the parent, random numbers after a fork."""

from __future__ import annotations

import fcntl
import os
import signal
import sys

OWN_FDS_FROM = 200
"""The lowest number of a descriptor of orch in a task. A program expects the numbers below for its own files."""
_PR_SET_PDEATHSIG = 1


def move_own_fd(fd: int) -> int:
    """Give a descriptor of orch a number from OWN_FDS_FROM on, and return the number. An executed program does not inherit it."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OWN_FDS_FROM)
    except OSError:  # the limit of open files is lower than that number
        return fd
    os.close(fd)
    return moved


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this signal to the calling process when its parent ends. 0 cancels an earlier call. Linux only."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill the calling process when its parent, which has this pid, ends. Ends the process if the parent is gone."""
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above took effect
        os._exit(127)


def reseed() -> None:
    """Give a forked process random numbers of its own. Python reseeds `random` itself; these two would be the same in every fork."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
