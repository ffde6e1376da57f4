"""Defines what /proc shows of a living process: its state, why it does not answer, its children.

/proc exists on Linux only; elsewhere every function returns that nothing is known. Fields: proc_pid_stat(5), proc_pid_status(5).

In a PID namespace, /proc may show the processes of another namespace (``unshare --pid --fork``, without ``--mount-proc``): there, a number
stands for another process, and a signal would reach a third one. So each function asks first whose /proc it is (`shows_this_namespace`).
"""

from __future__ import annotations

import functools
import os
import signal

_STATES = {
    "D": "waiting in the kernel in state D, where no signal reaches it",
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended, but still held by its threads",
}


def shows_this_namespace() -> bool:
    """True if the numbers in /proc are those of this process's own PID namespace."""
    return _shows_namespace_of(os.getpid())


@functools.cache
def _shows_namespace_of(pid: int) -> bool:
    """`pid`: of this process, for a fork may be in another namespace."""
    try:
        with open("/proc/self/status", "rb") as file:
            # One number for each namespace from that of /proc down to that of the process; kernels before 4.1 do not tell.
            numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), None)
        return numbers == [str(pid).encode()] if numbers else os.readlink("/proc/self") == str(pid)
    except OSError:
        return False


def describe_block(pid: int) -> str:
    """Why a process cannot run, such as ``stopped (SIGSTOP)``; empty for a process that runs, sleeps, is gone, or cannot be examined.

    A process that writes its core file keeps its sockets until the file is complete (2.5 GB took 5 s), and SIGTERM does not end it. A
    process whose file server or GPU driver does not answer is in state D, and not even SIGKILL ends it; any other process is in state D
    for a moment only.
    """
    return "writing its core file after a crash" if _status_field(pid, "CoreDumping") else _STATES.get(state_of(pid), "")


def state_of(pid: int) -> str:
    """The state of a process, one letter; empty if it is gone."""
    if not shows_this_namespace():
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field, the name in parentheses, may hold parentheses and blanks.
            return file.read().rpartition(b")")[2].split()[0].decode("ascii")
    except (OSError, IndexError):
        return ""


def why_no_stacks(pid: int) -> str:
    """Why SIGQUIT, which asks a task for its stacks, would reach no handler in this process; empty if it would, or if nothing is known."""
    caught = _status_field(pid, "SigCgt")
    return "" if caught is None or caught & 1 << (signal.SIGQUIT - 1) else "has no handler for SIGQUIT, which asks for its stacks"


def children() -> set[int]:
    """The direct children of this process, which has one thread. A subreaper also has those that its descendants have left behind."""
    if not shows_this_namespace():
        return set()
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()


def _status_field(pid: int, name: str) -> int | None:
    """A hexadecimal field of /proc/PID/status; None if it is not there."""
    if not shows_this_namespace():
        return None
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[1], 16) for line in file if line.startswith(f"{name}:".encode())), None)
    except (OSError, ValueError):
        return None
