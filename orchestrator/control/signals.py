"""The signals that end a run, and when its controller is ready for them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..errors import INTERRUPTED, TERMINATED

ENDINGS = {
    signal.SIGINT: ("interrupted (Ctrl-C)", INTERRUPTED),
    signal.SIGTERM: ("received SIGTERM", TERMINATED),
    signal.SIGHUP: ("the terminal was closed (SIGHUP)", 128 + signal.SIGHUP),
}
"""The signals that end a run: the reason in words, and the exit code."""


TOGETHER_S = 2.0
"""An engine sends SIGTERM to each process of a job, and the job's shell hands it on: what a controller gets within this time is one."""
EVERYWHERE_S = 10.0
"""The same for an engine that sends it to each node, of which each tells the controller."""


def once(stop: Callable[..., None], together_s: float = TOGETHER_S) -> Callable[..., None]:
    """`stop`, but for calls that come within this time of the first one."""
    asked_at: list[float] = []

    def stop_once(*args: Any, **options: Any) -> None:
        asked_at.append(time.monotonic())
        if len(asked_at) == 1 or asked_at[-1] - asked_at[0] > together_s:
            stop(*args, **options)

    return stop_once


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
            handle = partial(stop, reason, code, saves=number == signal.SIGTERM, by_signal=True)
            asyncio.get_running_loop().add_signal_handler(number, handle)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, _pause)
    release_signals()
    try:
        yield
    finally:
        hold_signals()


def _pause() -> None:
    """Stop this process at Ctrl-Z, and say that the tasks do not stop."""
    os.write(2, b"orch: note: stopped by Ctrl-Z: tasks here go on, those on other hosts end after lost_after_s; fg continues\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_signals() -> Collection[int]:
    """Hold back the signals until `handle_signals`: none is lost, or ends anything half-way. Returns those blocked before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)


def release_signals() -> None:
    """Give the signals of `ENDINGS` their usual effect again: once the verdict is written, they can only end the printing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
