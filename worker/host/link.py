"""The agent's end of the channel: orders in, frames out. No call blocks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ..protocol.channel import ChannelError, Decoder, encode
from ..protocol.messages import ORDERS
from .loop import Loop
from .processes.lifeline import continue_on_input

FULL = 4 * 1024 * 1024
"""From so many unsent bytes on, the output of the tasks waits."""


class Link:
    """`on_order` is called for each order, with its data; `on_lost` once, when the controller has ended or sends nonsense."""

    def __init__(
        self, loop: Loop, orders_fd: int, frames_fd: int, on_order: Callable[[Any, bytes], None], on_lost: Callable[[], None]
    ) -> None:
        self._loop, self._orders_fd, self._frames_fd = loop, orders_fd, frames_fd
        self._on_order, self._on_lost = on_order, on_lost
        self._decoder = Decoder(ORDERS)
        self._outgoing = bytearray()
        self._broken = False
        self.received_at = time.monotonic()
        """When any order came last."""
        self.escapes = False
        """See `Hello.escapes`."""
        self.on_room: Callable[[], None] = lambda: None
        os.set_blocking(frames_fd, False)
        continue_on_input(orders_fd)
        loop.on_readable(orders_fd, self._read)

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
        if was_empty:
            self._write()
            if self._outgoing:
                self._loop.on_writable(self._frames_fd, self._on_writable)

    def _on_writable(self) -> None:
        was_full = self.is_full
        self._write()
        if not self._outgoing:
            self._loop.forget(self._frames_fd)
        if was_full and not self.is_full:
            self.on_room()

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._frames_fd, self._outgoing[: 256 * 1024])]
        except BlockingIOError:
            pass
        except OSError:  # the controller has ended; `_read` gets the end of the file, too
            self._outgoing.clear()
            self._broken = True

    def _read(self) -> None:
        try:
            data = os.read(self._orders_fd, 1024 * 1024)
            orders = list(self._decoder.feed(data))
        except (OSError, ChannelError) as error:
            sys.stderr.write(f"orch agent: {error}\n")
            data = b""
        if not data:
            self._loop.forget(self._orders_fd)
            self._broken = True
            self._on_lost()
            return
        self.received_at = time.monotonic()
        for order, more in orders:
            self._on_order(order, more)
