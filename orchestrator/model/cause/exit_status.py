"""The end of a process, in words."""

from __future__ import annotations

from signal import Signals, strsignal

MOST_LAST_WORDS = 300
"""The most characters of a program's last line in a message."""
_NAMES = {number.value: number.name for number in Signals}
"""Most real-time signals have no name."""
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGPIPE", "SIGSEGV", "SIGSYS", "SIGXCPU", "SIGXFSZ")
"""Signals that the kernel or a library sends because of an error in the process itself; signal(7)."""


def describe_code(code: int, killed: bool) -> str:
    """``exit code 7``, ``killed by SIGKILL``, ``killed by SIGSEGV: segmentation fault``.

    `code`: 128 + n for signal n. `killed`: a signal ended the process; false for a shell that exits with 128 + n.
    """
    name = _NAMES.get(code - 128, "")
    if killed:
        words = f": {(strsignal(code - 128) or '').lower()}" if name in _CRASHES else ""
        return f"killed by {name or f'signal {code - 128}'}{words}"
    return f"exit code {code}" + (f", a shell's word for {name}" if name else "")


def describe_return(code: int) -> str:
    """With a verb: ``ended with exit code 7``, ``was killed by SIGKILL``. `code`: as in `subprocess`, -n for signal n."""
    return f"was {describe_code(128 - code, killed=True)}" if code < 0 else f"ended with {describe_code(code, killed=False)}"


def describe_answer(err: str, code: int | None, reason: str) -> str:
    """Why a helper program failed, with the last line of its stderr: ``it ended with exit code 1: no such module``.

    `code`: -n for signal n; None: orch stopped the program or could not start it; `reason` is why.
    """
    last = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "")
    how = reason if code is None else f"it {describe_return(code)}"
    return f"{how}: {last[:MOST_LAST_WORDS]}" if last else how
