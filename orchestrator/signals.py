"""The signals that the controller of a run acts on, and when it is ready for them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Iterator
from typing import Protocol

from .errors import INTERRUPTED, TERMINATED

ENDINGS = {
    signal.SIGINT: ("interrupted (Ctrl-C)", INTERRUPTED),
    signal.SIGTERM: ("received SIGTERM", TERMINATED),
    signal.SIGHUP: ("the terminal was closed (SIGHUP)", 128 + signal.SIGHUP),
}
"""The signals that end a run: the reason in words, and the exit code."""
REQUESTS = (signal.SIGUSR1, signal.SIGUSR2)
"""`orch stacks` and `orch restart`."""


def expected_endings() -> tuple[signal.Signals, ...]:
    """The signals of `ENDINGS` that end this run. A SIGHUP that was ignored when orch was started does not (`nohup`)."""
    return tuple(number for number in ENDINGS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


class Steered(Protocol):
    """The part of a `Supervisor` that signals use."""

    def stop(self, reason: str, code: int) -> None: ...

    def restart(self) -> None: ...

    def show_stacks(self) -> None: ...


@contextlib.contextmanager
def handle_signals(run: Steered) -> Iterator[None]:
    """Act on the signals that this process gets, in the loop that runs now. For a process that only runs this run.

    Before and after, the signals are held back (`hold_signals`).
    """
    import asyncio  # here: a process that only holds signals back need not wait for this import

    loop = asyncio.get_running_loop()
    endings = expected_endings()
    for number in endings:
        loop.add_signal_handler(number, run.stop, *ENDINGS[number])
    loop.add_signal_handler(signal.SIGUSR1, run.show_stacks)
    loop.add_signal_handler(signal.SIGUSR2, run.restart)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDINGS, *REQUESTS))
    try:
        yield
    finally:
        hold_signals()
        for number in (*endings, *REQUESTS):
            loop.remove_signal_handler(number)


def hold_signals() -> Collection[int]:
    """Hold back the signals until `handle_signals` acts on them: an early Ctrl-C is not lost, and ends nothing half-way.

    Returns the signals that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDINGS, *REQUESTS))


def release_signals() -> None:
    """Give the signals of `ENDINGS` their usual effect again: once the verdict is written, they can only end the printing.

    `REQUESTS` stay blocked: an `orch stacks` that comes too late must not kill this process.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
