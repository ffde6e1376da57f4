"""The signals that end a run, and when its controller is ready for them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator

from .errors import INTERRUPTED, TERMINATED

ENDINGS = {
    signal.SIGINT: ("interrupted (Ctrl-C)", INTERRUPTED),
    signal.SIGTERM: ("received SIGTERM", TERMINATED),
    signal.SIGHUP: ("the terminal was closed (SIGHUP)", 128 + signal.SIGHUP),
}
"""The signals that end a run: the reason in words, and the exit code."""
Stop = Callable[[str, int], None]
"""Ends a run, for this reason and with this exit code: `Supervisor.stop`."""


@contextlib.contextmanager
def handle_signals(stop: Stop) -> Iterator[None]:
    """End the run by the signals that this process gets, in the loop that runs now. For a process that only runs this run.

    Before and after, the signals are held back (`hold_signals`).
    """
    import asyncio  # here: a process that only holds signals back need not wait for this import

    loop = asyncio.get_running_loop()
    # A SIGHUP that was ignored when orch was started ends nothing (`nohup`).
    endings = [number for number in ENDINGS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    for number in endings:
        loop.add_signal_handler(number, stop, *ENDINGS[number])
    release_signals()
    try:
        yield
    finally:
        hold_signals()
        for number in endings:
            loop.remove_signal_handler(number)


def hold_signals() -> Collection[int]:
    """Hold back the signals until `handle_signals` acts on them: an early Ctrl-C is not lost, and ends nothing half-way.

    Returns the signals that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)


def release_signals() -> None:
    """Give the signals of `ENDINGS` their usual effect again: once the verdict is written, they can only end the printing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
