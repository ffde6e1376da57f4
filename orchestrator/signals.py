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
"""Those that end a run, in words, and with its exit code."""
REQUESTS = (signal.SIGUSR1, signal.SIGUSR2)
"""`orch stacks` and `orch restart`."""


def expected_endings() -> tuple[signal.Signals, ...]:
    """Those of `ENDINGS` that end this run. A SIGHUP that was ignored where orch was started does not: that is what `nohup` is for."""
    return tuple(number for number in ENDINGS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


class Steered(Protocol):
    """What signals are about; see `Supervisor`."""

    def stop(self, reason: str, code: int) -> None: ...

    def restart(self) -> None: ...

    def show_stacks(self) -> None: ...


@contextlib.contextmanager
def handle_signals(run: Steered) -> Iterator[None]:
    """Act on the signals that this process gets, in the loop that runs now. For a process that does nothing else than to run this run.

    Before and after, they are held back (`hold_signals`).
    """
    import asyncio  # here, for a process that only holds signals back would wait for its import

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
    """Keep the signals that end a run until `handle_signals` acts on them: an early Ctrl-C is not lost, and ends nothing half-way.

    Returns those that were blocked before.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDINGS, *REQUESTS))


def release_signals() -> None:
    """Let them do again what they do to any Python program: once the verdict is written, they can only cost the reader something.

    But not those that only ask for something: an `orch stacks` that comes too late must not kill what it asks.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
