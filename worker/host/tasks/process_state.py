"""What keeps a living process from answering, as /proc tells it: stopped, traced, or deaf to the signal that asks.

/proc is Linux's; elsewhere nothing is known and nothing is said. Fields: proc_pid_stat(5), proc_pid_status(5).
"""

from __future__ import annotations

import os
import signal

_STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended, but still held by its threads",
}


def what_holds(pid: int) -> str:
    """``stopped (SIGSTOP)`` or the like; empty for a process that runs, sleeps, is gone, or cannot be looked at.

    A process that writes its core file keeps its sockets until it is done: 2.5 GB took 5 s, and SIGTERM does not end it. State D is
    that of one whose file server or GPU's driver does not answer, and not even SIGKILL ends it; for a moment, it is that of any other.
    """
    is_dumping = _numbers(pid, "CoreDumping")
    if is_dumping is not None and is_dumping[0]:
        return "writing its core file after a crash"
    state = state_of(pid)
    if state == "D":
        return _describe_wait(pid)
    stuck = next((thread for thread in _threads(pid) if state_of(thread) == "D"), None) if state == "Z" else None
    return _STATES.get(state, "") if stuck is None else f"ended, but for a thread that is {_describe_wait(stuck)}"


def state_of(place: int | str) -> str:
    """A process's or thread's state, one letter; empty if it is gone."""
    try:
        with open(f"/proc/{place}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return ""
    # The name in parentheses may itself hold parentheses and blanks.
    return data[data.rfind(b")") + 2 :][:1].decode("ascii", "replace")


def _describe_wait(place: int | str) -> str:
    try:
        with open(f"/proc/{place}/wchan") as file:
            function = file.read().strip("0")  # 0: the kernel does not tell
    except OSError:
        function = ""
    return f"waiting in the kernel in state D{f', in {function}' if function else ''}, where no signal reaches it"


def why_deaf(pid: int) -> str:
    """Why SIGQUIT, which asks for stacks, would not reach a handler in this process; empty if it would, or if nobody can tell."""
    masks = _numbers(pid, "SigCgt", "SigIgn")
    if masks is None:
        return ""
    caught, ignored = masks
    bit = 1 << (signal.SIGQUIT - 1)
    if ignored & bit:
        return "ignores SIGQUIT, which asks for its stacks"
    if not caught & bit:
        return "has taken away the handler that shows its stacks (SIGQUIT)"
    blocked = [_numbers(thread, "SigBlk") for thread in _threads(pid)]
    if blocked and all(mask is not None and mask[0] & bit for mask in blocked):
        return "blocks SIGQUIT in all of its threads"
    return ""


def _threads(pid: int) -> list[str]:
    try:
        return [f"{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _numbers(place: int | str, *names: str) -> tuple[int, ...] | None:
    """Fields of a process's or thread's status, which are written in hexadecimal; None if it has not all of them."""
    try:
        with open(f"/proc/{place}/status", "rb") as file:
            lines = dict(line.decode("ascii", "replace").partition(":")[::2] for line in file)
        return tuple(int(lines[name], 16) for name in names)
    except (OSError, KeyError, ValueError):
        return None
