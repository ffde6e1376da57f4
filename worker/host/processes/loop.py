"""The agent's event loop: one thread waits for descriptors, timers and signals, and calls the functions that are registered for them.

It is not asyncio, because importing asyncio would cost every agent about 50 ms at its start, on every host of every run.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

Callback = Callable[[], None]
LONGEST_S = 86_400.0
"""The longest single wait: epoll_wait(2) takes no more than 24 days."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Loop:
    """An event loop. No function that is registered may block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._serial = itertools.count()

    def on_readable(self, source: int | HasFileno, action: Callback) -> None:
        self._selector.register(source, selectors.EVENT_READ, action)

    def on_writable(self, sink: int | HasFileno, action: Callback) -> None:
        self._selector.register(sink, selectors.EVENT_WRITE, action)

    def forget(self, source: int | HasFileno) -> None:
        self._selector.unregister(source)

    def after(self, seconds: float, action: Callback) -> None:
        """Call `action` once, after so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._serial), action))

    def on_signals(self, numbers: Collection[int], action: Callable[[bytes], Any]) -> None:
        """Call `action` with the numbers of the signals that have arrived, one byte each. The loop calls it, never a handler."""
        # A pipe holds 65,536 bytes, one for each signal; a socket holds less than 300, and hundreds of tasks may end at once.
        wake, feeder = os.pipe()
        os.set_blocking(feeder, False)
        signal.set_wakeup_fd(feeder, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the process that has started this one may have blocked them
        self.on_readable(wake, lambda: action(os.read(wake, 4096)))

    def run(self, is_done: Callable[[], bool]) -> None:
        """Run until `is_done` returns True; it is called after every wake-up."""
        while not is_done():
            self._wait(min(max(0.0, self._timers[0][0] - time.monotonic()), LONGEST_S) if self._timers else None)
            now = time.monotonic()
            if self._timers and self._timers[0][0] <= now:
                self._wait(0.0)  # what arrived while this process was stopped or had no core is handled before any deadline
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()

    def _wait(self, timeout: float | None) -> None:
        """Wait for descriptors that are ready, and call their functions."""
        for key, _ in self._selector.select(timeout):
            if self._selector.get_map().get(key.fd) is key:  # another function of this same wake-up may have forgotten it
                key.data()
