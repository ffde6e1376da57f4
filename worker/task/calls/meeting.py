"""A place where the tasks of a call wait for each other (`orchestrator.testing.barrier`): a file for each that has come.

Files, because nobody has to answer: neither the test's process, which may sleep, nor another task, which may be dead.
"""

from __future__ import annotations

import os
import time

_LOOK_S = (0.0005, 0.01)
"""How often the others are looked for: at first, and after a while."""

_parties: tuple[str, ...] = ()
_directory = _me = ""
_meetings = 0


def begin(directory: str, me: str, parties: tuple[str, ...]) -> None:
    """A function begins, in these tasks; `directory` is for this call alone."""
    global _directory, _me, _parties, _meetings
    _directory, _me, _parties, _meetings = directory, me, parties, 0


def meet(timeout: float | None) -> None:
    """See `orchestrator.testing.barrier`."""
    global _meetings
    if not _parties:
        raise RuntimeError("barrier() is for functions that a cluster runs in its tasks")
    _meetings += 1
    place = os.path.join(_directory, str(_meetings))
    os.makedirs(place, mode=0o700, exist_ok=True)
    os.close(os.open(os.path.join(place, _me), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    began, pause_s = time.monotonic(), _LOOK_S[0]
    while missing := set(_parties).difference(os.listdir(place)):
        if timeout is not None and time.monotonic() - began > timeout:
            raise TimeoutError(f"barrier: {', '.join(sorted(missing))} did not come within {timeout:g} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, _LOOK_S[1])
