"""What a function may call inside a task."""

from __future__ import annotations

import sys
from importlib import import_module


def barrier(timeout: float | None = None) -> None:
    """Wait until all tasks in which this function was started have come here as often.

    Raises `TimeoutError` after `timeout` seconds, which names those that are missing; without, the time of the whole call is the limit.
    RuntimeError outside a function that a cluster runs.
    """
    # A task has orch's code under a name of its own; only a task that the test's process itself is has not.
    meeting = sys.modules.get("_orch_worker.task.calls.meeting") or import_module("worker.task.calls.meeting")
    meeting.meet(timeout)
