"""Finds whether the agent at the other end of a connection still lives: it is asked for signs of life, and may be silent for so long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEATS = 8
"""How often an agent is asked for a sign of life within the time of silence that loses it."""
UNREAD_S = 0.1
"""After a standstill of this process, the loop reads for so long what has come meanwhile, before any agent is given up."""


class Liveness:
    """Watches the silence of one agent. The link tells what has come by `hear`."""

    def __init__(
        self, ask: Callable[[], None], is_excused: Callable[[], bool], doubt: Callable[[float], None], lose: Callable[[float, float], None]
    ) -> None:
        """`ask`: sends a question. `is_excused`: the agent may be too busy for an answer. `doubt`: gets the seconds of a silence that has
        lasted for half of its time. `lose`: gets the seconds of silence that were allowed, and by how many the agent is overdue."""
        self._ask, self._is_excused, self._doubt, self._lose = ask, is_excused, doubt, lose
        self.silence_s = float("inf")
        """The silence that loses the agent."""
        self.heard_at = 0.0
        """When anything came last."""
        self.progress_at = 0.0
        """When anything came last that was not only a sign of life."""
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """There is a channel, by which something may come."""
        self.heard_at = self.progress_at = time.monotonic()

    def hear(self) -> None:
        """Something has come, which may be a sign of life only."""
        self.heard_at = time.monotonic()

    def progress(self) -> None:
        """Note that what has come was more than a sign of life."""
        self.progress_at = self.heard_at

    def allow_silence(self, silence_s: float) -> None:
        """Lose the agent after so many seconds of silence, unless an earlier limit is shorter."""
        if silence_s < self.silence_s:
            self.silence_s = silence_s
            self.stop()
            self._watching = asyncio.create_task(self._watch(silence_s))

    def stop(self) -> None:
        """Ask nothing more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, silence_s: float) -> None:
        """Ask for signs of life until none has come for so many seconds.

        A standstill of this process (Ctrl-Z, a closed laptop) counts as one beat, because this process reads nothing then.
        """
        beat_s, silent_s = silence_s / BEATS, 0.0
        while silent_s < silence_s:
            asked_at = time.monotonic()
            self._ask()
            await asyncio.sleep(beat_s)
            silent_s += min(time.monotonic() - asked_at, 1.5 * beat_s)
            if silent_s >= silence_s:
                await asyncio.sleep(UNREAD_S)
            if self.heard_at >= asked_at or self._is_excused():
                silent_s = 0.0
            elif silent_s >= silence_s / 2:
                self._doubt(silent_s)
        overdue_s = time.monotonic() - self.heard_at - 1.5 * beat_s
        # In a call of its own, so that the handler of the loop gets the exceptions of `lose`.
        asyncio.get_running_loop().call_soon(self._lose, silence_s, overdue_s)
