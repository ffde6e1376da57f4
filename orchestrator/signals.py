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


@contextlib.contextmanager
def handle_signals(stop: Callable[..., None]) -> Iterator[None]:
    """End the run by the signals that this process gets, in the loop that runs now. For a process that only runs this run.

    `stop`: `Supervisor.stop`. Before and after, the signals are held back (`hold_signals`); the loop takes its handlers away at its end.
    """
    import asyncio  # here: a process that only holds signals back need not wait for this import
    from functools import partial

    for number, (reason, code) in ENDINGS.items():
        # A SIGHUP that was ignored when orch was started ends nothing (`nohup`).
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            # SIGTERM is how a machine, or an engine, is taken away; Ctrl-C is somebody who waits.
            asyncio.get_running_loop().add_signal_handler(number, partial(stop, reason, code, saves=number == signal.SIGTERM))
    release_signals()
    try:
        yield
    finally:
        hold_signals()


def hold_signals() -> Collection[int]:
    """Hold back the signals until `handle_signals` acts on them: an early Ctrl-C is not lost, and ends nothing half-way.

    Returns the signals that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)


def release_signals() -> None:
    """Give the signals of `ENDINGS` their usual effect again: once the verdict is written, they can only end the printing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
