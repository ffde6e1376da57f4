"""How a process has ended, in words."""

from __future__ import annotations

from signal import Signals

MOST_LAST_WORDS = 300
"""Characters of the last line that a program has said."""
_NAMES = {number.value: number.name for number in Signals}
"""Most real-time signals have none."""
_MEANINGS = {
    "SIGABRT": "native code gave up",
    "SIGBUS": "memory that is not there",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction",
    "SIGPIPE": "nobody reads what it writes",
    "SIGSEGV": "segmentation fault",
    "SIGSYS": "forbidden system call",
    "SIGXCPU": "CPU time limit",
    "SIGXFSZ": "file size limit",
}
"""Those that the kernel or a library sends to the process that they are about; signal(7)."""


def describe_code(code: int, killed: bool) -> str:
    """An end in words: ``exit code 7``, ``killed by SIGKILL``, ``killed by SIGSEGV: segmentation fault``.

    `code`: 128 + n for signal n. `killed`: by a signal, and not by its own word for one.
    """
    name = _NAMES.get(code - 128, "")
    if killed:
        words = f": {_MEANINGS[name]}" if name in _MEANINGS else ""
        return f"killed by {name or f'signal {code - 128}'}{words}"
    return f"exit code {code}" + (f", a shell's word for {name}" if name else "")


def describe_return(code: int) -> str:
    """The same of a child of ours, as a verb: ``ended with exit code 7``, ``was killed by SIGKILL``. `code`: -n for signal n."""
    return f"was {describe_code(128 - code, killed=True)}" if code < 0 else f"ended with {describe_code(code, killed=False)}"


def describe_answer(err: str, code: int | None, reason: str) -> str:
    """How a program that was asked something has ended, with the last words on its stderr: ``it ended with exit code 1: no such module``.

    `code`: -n for signal n; None: it was stopped, or could not be started, for the `reason`.
    """
    last = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "")
    how = reason if code is None else f"it {describe_return(code)}"
    return f"{how}: {last[:MOST_LAST_WORDS]}" if last else how
