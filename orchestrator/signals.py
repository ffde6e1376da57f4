"""The signals that the controller of a run acts on, and when it is ready for them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from collections.abc import Collection

from .errors import INTERRUPTED, TERMINATED

ENDINGS = {
    signal.SIGINT: ("interrupted (Ctrl-C)", INTERRUPTED),
    signal.SIGTERM: ("told to end (SIGTERM)", TERMINATED),
    signal.SIGHUP: ("the terminal was closed (SIGHUP)", 128 + signal.SIGHUP),
}
"""Those that end a run, in words, and with its exit code."""
REQUESTS = (signal.SIGUSR1, signal.SIGUSR2)
"""`orch stacks` and `orch restart`."""


def expected_endings() -> tuple[signal.Signals, ...]:
    """Those of `ENDINGS` that end this run. A SIGHUP that was ignored where orch was started does not: that is what `nohup` is for."""
    return tuple(number for number in ENDINGS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def hold_signals() -> Collection[int]:
    """Keep the signals that end a run until `Supervisor.run` can act on them: an early Ctrl-C is not lost, and ends nothing half-way.

    Returns those that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDINGS, *REQUESTS))


def watch_children_without_threads() -> None:
    """For the `asyncio.run` that follows: in Python before 3.12 it waits for each child in a thread, which takes what `hold_signals` holds
    back in the main thread alone: a run would end without its verdict.

    Where the kernel has no pidfds, it stays so (asyncio/unix_events.py, `ThreadedChildWatcher`).
    """
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return
        # One that not even SIGKILL ends (state D) is left behind, and who is to know has been told.
        warnings.filterwarnings("ignore", "A loop is being detached", RuntimeWarning)
        asyncio.get_event_loop_policy().set_child_watcher(asyncio.PidfdChildWatcher())


def release_signals() -> None:
    """Let them do again what they do to any Python program: once the verdict is written, they can only cost the reader something.

    But not those that only ask for something: an `orch stacks` that comes too late must not kill what it asks.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
