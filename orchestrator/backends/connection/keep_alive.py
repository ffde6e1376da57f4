"""Signs of life: an agent is asked for them, and is given up after too long a silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEATS = 8
"""How often an agent is asked for a sign of life within the time of silence that loses it."""
UNREAD_S = 0.1
"""After a standstill of this process, the loop reads for so long what has come meanwhile, before any agent is given up."""


class KeepAlive:
    """Watches the silence of one agent::

        keep_alive = KeepAlive(send_ping, is_busy, on_silent)
        keep_alive.start(60.0)  # 60 s without a frame: on_silent(60.0)
        keep_alive.received_at = time.monotonic()  # at each frame
        keep_alive.stop()

    While `is_busy` returns True, silence does not count.
    """

    def __init__(self, send_ping: Callable[[], None], is_busy: Callable[[], bool], on_silent: Callable[[float], None]) -> None:
        self._send_ping, self._is_busy, self._on_silent = send_ping, is_busy, on_silent
        self.received_at = time.monotonic()
        """When any frame came last."""
        self._pause_s: float | None = None
        """A silence that is no longer is nothing unusual. None: no sign of life was requested yet."""
        self._limit_s = float("inf")
        self._watching: asyncio.Task[None] | None = None

    def start(self, silence_s: float) -> None:
        """Send signs of life until `stop`."""
        self._pause_s = 1.5 * silence_s / BEATS
        self.limit(silence_s)

    def limit(self, silence_s: float) -> None:
        """Allow no more than so many seconds of silence from now on."""
        if silence_s < self._limit_s:
            self.stop()
            self._limit_s = silence_s
            self._watching = asyncio.create_task(self._watch(silence_s))

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    @property
    def overdue_s(self) -> float:
        """For how many seconds the silence has been more than a pause; zero or less: the silence is a pause."""
        return 0.0 if self._pause_s is None else time.monotonic() - self.received_at - self._pause_s

    async def _watch(self, silence_s: float) -> None:
        while not await self._is_silent_for(silence_s):
            pass
        asyncio.get_running_loop().call_soon(self._on_silent, silence_s)  # so the loop's handler gets its exceptions

    async def _is_silent_for(self, silence_s: float) -> bool:
        """Ask for signs of life. Returns False when one has come, True if none comes within so many seconds.

        A standstill of this process (Ctrl-Z, a closed laptop) counts as one beat, because this process reads nothing then.
        """
        began_at, silent_s, beat_s = time.monotonic(), 0.0, silence_s / BEATS
        while silent_s < silence_s:
            asked_at = time.monotonic()
            self._send_ping()
            await asyncio.sleep(beat_s)
            if self._is_busy() or self.received_at >= began_at:
                return False
            silent_s += min(time.monotonic() - asked_at, 1.5 * beat_s)
        await asyncio.sleep(UNREAD_S)
        return self.received_at < began_at
