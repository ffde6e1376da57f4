"""A place where the tasks of a call wait for each other (`orchestrator.testing.barrier`): a file for each that has come.

Files, because no one has to answer: neither the test's process, which may sleep, nor another task, which may be dead.
"""

from __future__ import annotations

import os
import time

_POLL_S = (0.0005, 0.01)
"""Seconds between two looks for the other tasks: at first, and after a while."""

_tasks: tuple[str, ...] = ()
_directory = _task = ""
_count = 0


def enter_call(directory: str, task: str, tasks: tuple[str, ...]) -> None:
    """A function begins, in these tasks; `directory` is for this call alone."""
    global _directory, _task, _tasks, _count
    _directory, _task, _tasks, _count = directory, task, tasks, 0


def wait(timeout: float | None) -> None:
    """See `orchestrator.testing.barrier`."""
    global _count
    if not _tasks:
        raise RuntimeError("barrier() is for functions that a cluster runs in its tasks")
    _count += 1
    place = os.path.join(_directory, str(_count))
    os.makedirs(place, mode=0o700, exist_ok=True)
    os.close(os.open(os.path.join(place, _task), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    began, pause_s = time.monotonic(), _POLL_S[0]
    while missing := set(_tasks).difference(os.listdir(place)):
        if timeout is not None and time.monotonic() - began > timeout:
            raise TimeoutError(f"barrier: {', '.join(sorted(missing))} did not come within {timeout:g} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, _POLL_S[1])
