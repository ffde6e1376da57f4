"""What /proc shows of a living process: its state, why it does not answer, its children.

/proc exists on Linux only; elsewhere every function returns that nothing is known. Fields: proc_pid_stat(5), proc_pid_status(5).
"""

from __future__ import annotations

import os
import signal

_STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended, but still held by its threads",
}


def describe_block(pid: int) -> str:
    """Why a process cannot run, such as ``stopped (SIGSTOP)``; empty for a process that runs, sleeps, is gone, or cannot be examined.

    A process that writes its core file keeps its sockets until the file is complete (2.5 GB took 5 s), and SIGTERM does not end it. A
    process whose file server or GPU driver does not answer is in state D, and not even SIGKILL ends it; any other process is in state D
    for a moment only.
    """
    is_dumping = _status_fields(pid, "CoreDumping")
    if is_dumping is not None and is_dumping[0]:
        return "writing its core file after a crash"
    state = state_of(pid)
    if state == "D":
        return _describe_wait(pid)
    stuck = next((thread for thread in _threads(pid) if state_of(thread) == "D"), None) if state == "Z" else None
    return _STATES.get(state, "") if stuck is None else f"ended, but for a thread that is {_describe_wait(stuck)}"


def state_of(place: int | str) -> str:
    """The state of a process or thread, one letter; empty if it is gone. `place`: the path below /proc, such as a pid."""
    try:
        return _stat_fields(place)[0].decode("ascii", "replace")
    except (OSError, IndexError):
        return ""


def _describe_wait(place: int | str) -> str:
    try:
        with open(f"/proc/{place}/wchan") as file:
            function = file.read().strip("0")  # 0: not known
    except OSError:
        function = ""
    return f"waiting in the kernel in state D{f', in {function}' if function else ''}, where no signal reaches it"


def why_no_stacks(pid: int) -> str:
    """Why SIGQUIT, which asks a task for its stacks, would reach no handler in this process; empty if it would, or if nothing is known."""
    masks = _status_fields(pid, "SigCgt", "SigIgn")
    if masks is None:
        return ""
    caught, ignored = masks
    bit = 1 << (signal.SIGQUIT - 1)
    if ignored & bit:
        return "ignores SIGQUIT, which asks for its stacks"
    if not caught & bit:
        return "has taken away the handler that shows its stacks (SIGQUIT)"
    blocked = [_status_fields(thread, "SigBlk") for thread in _threads(pid)]
    if blocked and all(mask is not None and mask[0] & bit for mask in blocked):
        return "blocks SIGQUIT in all of its threads"
    return ""


def children() -> set[int]:
    """The direct children of this process, which has one thread. A subreaper also has those that its descendants have left behind."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()


def _threads(pid: int) -> list[str]:
    try:
        return [f"{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _stat_fields(place: int | str) -> list[bytes]:
    """The fields of /proc/PLACE/stat from the third on. The second, the name in parentheses, may hold parentheses and blanks."""
    with open(f"/proc/{place}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _status_fields(place: int | str, *names: str) -> tuple[int, ...] | None:
    """Hexadecimal fields of /proc/PLACE/status; None if one of them is not there."""
    try:
        with open(f"/proc/{place}/status", "rb") as file:
            lines = dict(line.decode("ascii", "replace").partition(":")[::2] for line in file)
        return tuple(int(lines[name], 16) for name in names)
    except (OSError, KeyError, ValueError):
        return None
