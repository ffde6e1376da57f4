"""Process groups, as the kernel knows them: their members, and signals to groups and processes."""

from __future__ import annotations

import contextlib
import os
import signal


def signal_group(leader: int, number: int) -> None:
    """Send a signal to all processes of a group. A group that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
        if number == signal.SIGTERM:
            os.killpg(leader, signal.SIGCONT)  # a stopped process does not act on SIGTERM


def signal_process(pid: int, number: int) -> None:
    """Send a signal to one process. A process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def is_empty(leader: int) -> bool:
    """True if no process is left in the group of `leader`. A zombie counts as a process."""
    try:
        os.killpg(leader, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def members(leader: int) -> set[int]:
    """The pids in the group of `leader`; empty where there is no /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(ValueError, OSError):
                if os.getpgid(int(name)) == leader:
                    found.add(int(name))
    return found
