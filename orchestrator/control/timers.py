"""The timers of a run: its next deadline, the reminder of what it waits for, and the look for tasks that should have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from worker.machine.clock import now

REMINDED_S = 1.0
"""The time between two looks at what the run waits for."""
PREPARED_S = 0.002
"""When the end is prepared after the first task has ended: the console, a thread of this process, says first that it has."""
LATE_S = 1.0
"""How late a timer may be. A later one tells of a standstill of this process."""


class DeadlineTimer:
    """Calls `tick` at the next deadline, which it asks for once for all events that come in one turn of the loop."""

    def __init__(self, next_deadline: Callable[[], float | None], tick: Callable[[], None]) -> None:
        """`next_deadline`: seconds since the epoch; None: there is no deadline."""
        self._next_deadline, self._tick = next_deadline, tick
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = self._is_over = False

    def set_soon(self) -> None:
        """Something has happened that may change the deadline: finding it means a look at every task."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._set)

    def cancel(self) -> None:
        """There is no deadline any more."""
        self._is_over = True
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._is_due = False
        if not self._is_over:
            self._stop()
            if (at := self._next_deadline()) is not None:
                self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now()), self._tick)


class Reminder:
    """Tells what a run waits for, once in an attempt for each text."""

    def __init__(self, look: Callable[[], Iterable[str] | None], tell: Callable[[str], None]) -> None:
        """`look`: finds the texts; None: the run waits for nothing more. `tell`: gets the new ones."""
        self._look, self._tell = look, tell
        self._timer: asyncio.TimerHandle | None = None
        self._told: set[str] = set()

    def begin(self, after_s: float, *, is_new: bool = False) -> None:
        """Look after so many seconds, and then again and again. `is_new`: an attempt begins."""
        if is_new:
            self._told.clear()
            self.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._remind)

    def cancel(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _remind(self) -> None:
        texts = self._look()
        if texts is not None:
            for text in texts:
                if text not in self._told:
                    self._told.add(text)
                    self._tell(text)
            self.begin(REMINDED_S)


class EndCheck:
    """Calls `check` when tasks should have ended, and has what has come read first if this process stood still meanwhile (Ctrl-Z)."""

    def __init__(self, check: Callable[[], None], prepare: Callable[[], object]) -> None:
        """`prepare` is called when the first end is expected: this process has nothing else to do until then."""
        self._check, self._prepare = check, prepare
        self._at = 0.0
        """When the last look is due."""

    def expect(self, at: float) -> None:
        """At this time, in seconds since the epoch, some tasks have ended. One look is enough for all that end within a second."""
        if not self._at:
            asyncio.get_running_loop().call_later(PREPARED_S, self._prepare)
        if self._at < at:
            self._at = at + LATE_S
            self._call_at(self._at)

    def _call_at(self, at: float) -> None:
        asyncio.get_running_loop().call_later(at - now(), self._look, at)

    def _look(self, due_at: float) -> None:
        if now() > due_at + LATE_S:
            self._call_at(now() + LATE_S)
        else:
            self._check()
