"""The errors about a TPU that a script may catch (`worker.TpuError`, `worker.NoTpu`)."""

from __future__ import annotations


class TpuError(RuntimeError):
    """The TPU cannot be used, or not in this layout; the message says what orch has tried, and what to do."""

    __module__ = "worker"  # the name in a traceback


class NoTpu(TpuError):
    """There is no TPU at the expected place."""

    __module__ = "worker"
