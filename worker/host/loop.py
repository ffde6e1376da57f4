"""One thread that waits for descriptors, timers and signals, and calls what was registered for them."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

Action = Callable[[], None]
LONGEST_S = 86_400.0
"""epoll_wait(2) takes no more than 24 days."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Loop:
    """The agent's reactor. Nothing in it may block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Action]] = []
        self._serial = itertools.count()

    def on_readable(self, source: int | HasFileno, action: Action) -> None:
        self._selector.register(source, selectors.EVENT_READ, action)

    def on_writable(self, sink: int | HasFileno, action: Action) -> None:
        self._selector.register(sink, selectors.EVENT_WRITE, action)

    def forget(self, source: int | HasFileno) -> None:
        self._selector.unregister(source)

    def after(self, seconds: float, action: Action) -> None:
        """Call `action` once, that much later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._serial), action))

    def on_signals(self, numbers: Collection[int], action: Callable[[bytes], Any]) -> None:
        """Call `action` with the numbers that arrived, as bytes, from the loop and never from the handler itself."""
        # A byte for each signal: 65,536 of them. A socket takes less than 300, and hundreds of tasks may end at once.
        wake, feeder = os.pipe()
        os.set_blocking(feeder, False)
        signal.set_wakeup_fd(feeder, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # whoever has started us may have had them blocked
        self.on_readable(wake, lambda: action(os.read(wake, 4096)))

    def run(self, is_done: Callable[[], bool]) -> None:
        """Until `is_done`, which is asked after every wake-up."""
        while not is_done():
            self._wait(min(max(0.0, self._timers[0][0] - time.monotonic()), LONGEST_S) if self._timers else None)
            now = time.monotonic()
            if self._timers and self._timers[0][0] <= now:
                self._wait(0.0)  # what has come while we ourselves stood still comes before anybody's deadline
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()

    def _wait(self, timeout: float | None) -> None:
        """For what there is to read or to write; it is called."""
        for key, _ in self._selector.select(timeout):
            if self._selector.get_map().get(key.fd) is key:  # and has not been forgotten in this same wake-up
                key.data()
