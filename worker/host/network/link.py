"""The agent's end of the channel: orders in, frames out. No call blocks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...protocol.channel import ChannelError, Decoder, encode
from ...protocol.messages import ORDERS
from ...protocol.replay import Replay, goodbye
from ..processes.lifeline import continue_on_input
from ..processes.loop import Loop

FULL = 4 * 1024 * 1024
"""From so many unsent bytes on, the output of the tasks waits."""


class Link:
    """`on_order` is called for each order, with its data; `on_lost` once, when the controller has ended or sends nonsense.

    After `keep_for_return`, the end of the channel alone is no end of the controller: then `on_cut` is called, and frames wait for
    `take_over`.
    """

    def __init__(
        self, loop: Loop, orders_fd: int, frames_fd: int, on_order: Callable[[Any, bytes], None], on_lost: Callable[[], None]
    ) -> None:
        self._loop, self._orders_fd, self._frames_fd = loop, orders_fd, frames_fd
        self._on_order, self._on_lost = on_order, on_lost
        self._decoder = Decoder(ORDERS)
        self._outgoing = bytearray()
        self._is_writing = self._is_reading = False
        """The loop waits until more can be written; until there is more to read."""
        self._gathers = False
        self._broken = self._is_cut = False
        self._sent: Replay | None = Replay()
        """None: no one comes back, so nothing is kept."""
        self._goodbye = self._tail = b""
        self._on_cut: Callable[[], None] | None = None
        self.received = 0
        """How many bytes of orders have come, since the first channel began."""
        self.received_at = time.monotonic()
        """When any order came last."""
        self.escapes = False
        """See `Hello.escapes`."""
        self.on_room: Callable[[], None] = lambda: None
        self._open()

    def _open(self) -> None:
        os.set_blocking(self._frames_fd, False)
        continue_on_input(self._orders_fd)
        self._loop.on_readable(self._orders_fd, self._read)
        self._is_reading = True

    def _stop_reading(self) -> None:
        self._loop.forget(self._orders_fd)
        self._is_reading = False

    def keep_for_return(self, secret: str, on_cut: Callable[[], None]) -> None:
        """From here on, the controller can come back after a cut. `secret`: as in `replay.goodbye`."""
        self._goodbye, self._on_cut = goodbye(secret), on_cut

    def keep_nothing(self) -> None:
        """The controller does not come back: the end of the channel is the end of the controller."""
        self._sent = self._on_cut = None

    def forget(self, received: int) -> None:
        """The controller has received so many bytes of frames."""
        if self._sent is not None:
            self._sent.forget(received)

    @property
    def is_empty(self) -> bool:
        """Nothing is left to be sent."""
        return not self._outgoing

    @property
    def is_full(self) -> bool:
        return len(self._outgoing) >= FULL

    def send(self, message: Any, data: bytes = b"") -> None:
        """Queue a frame, and send as many bytes as possible at once. After the end of the controller: nothing."""
        if self._broken:
            return
        was_empty = self.is_empty
        self._outgoing += encode(message, data, escaped=self.escapes and bool(data))
        if was_empty and not self._gathers:
            self._write()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Write together what is sent meanwhile, at the end: many small frames then cost one call, and wake the controller once."""
        self._gathers, before = True, self._gathers
        try:
            yield
        finally:
            self._gathers = before
            if not (before or self._is_writing):
                self._write()

    def _on_writable(self) -> None:
        was_full = self.is_full
        self._write()
        if was_full and not self.is_full:
            self.on_room()

    def _write(self) -> None:
        if self._is_cut:
            return
        try:
            while self._outgoing:
                size = os.write(self._frames_fd, self._outgoing[: 256 * 1024])
                if self._sent is not None:
                    self._sent.keep(self._outgoing[:size])
                del self._outgoing[:size]
        except BlockingIOError:
            pass
        except OSError:  # the channel has ended; `_read` gets the end of the file, too
            self._stop_writing()
            return
        self._wait_for_room(bool(self._outgoing))

    def _wait_for_room(self, is_needed: bool) -> None:
        if is_needed and not self._is_writing:
            self._loop.on_writable(self._frames_fd, self._on_writable)
        elif self._is_writing and not is_needed:
            self._loop.forget(self._frames_fd)
        self._is_writing = is_needed

    def _stop_writing(self) -> None:
        self._wait_for_room(False)
        self._is_cut = True
        if self._on_cut is None:
            self._outgoing.clear()
            self._broken = True

    def _read(self) -> None:
        try:
            data = os.read(self._orders_fd, 1024 * 1024)
        except OSError as error:
            sys.stderr.write(f"orch agent: {error}\n")
            data = b""
        if not data and self._on_cut is not None:
            self._cut()
            return
        try:
            orders = list(self._decoder.feed(data)) if data and not self._hears_goodbye(data) else None
        except ChannelError as error:
            sys.stderr.write(f"orch agent: {error}\n")
            orders = None
        if orders is None:
            self._stop_reading()
            self._broken = True
            self._on_lost()
            return
        self.received += len(data)
        self.received_at = time.monotonic()
        for order, more in orders:
            self._on_order(order, more)

    def _hears_goodbye(self, data: bytes) -> bool:
        if not self._goodbye:
            return False
        self._tail = (self._tail + data)[-len(self._goodbye) :]
        return self._tail == self._goodbye

    def _cut(self) -> None:
        """The channel has ended, and the controller may come back. What this process writes elsewhere must not fail meanwhile."""
        assert self._on_cut is not None
        self._stop_reading()
        self._stop_writing()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (self._orders_fd, self._frames_fd, 1, 2):
            os.dup2(nowhere, fd, inheritable=fd < 3)
        os.close(nowhere)
        self._on_cut()

    def take_over(self, fds: Sequence[int], received: int) -> None:
        """Go on with a new channel, whose ends for orders, frames and messages these are.

        `received`: how many bytes of frames have come to the controller. The controller gets the number of bytes of orders that have come
        here, in eight bytes, and then its frames from there on. Raises `ValueError` for a number that cannot be; then nothing has changed.
        """
        if self._sent is None or self._on_cut is None:
            raise ValueError("nothing was kept")
        missing = self._sent.after(received)
        if self._is_reading:  # the controller knows of the cut, and this end did not, or knows it only of the frames
            self._cut()
        self._sent.take(received)
        self._outgoing[:0] = missing
        for new, own in zip((*fds, fds[2]), (self._orders_fd, self._frames_fd, 2, 1), strict=True):
            os.dup2(new, own, inheritable=own < 3)
        self._is_cut = False
        self.received_at = time.monotonic()
        self._open()
        try:
            os.write(self._frames_fd, self.received.to_bytes(8, "big"))
        except OSError:  # cut again
            return
        self._write()
        self.on_room()
