"""Defines what one end of a channel has sent and the other end may not have got: if the channel is cut, the next channel goes on from
there.

Both ends count the bytes that they have received, from the first channel on. They tell each other the count with `Ping`, `Pong` and `Ack`.
So nothing is lost at a cut, and nothing comes twice: an order is carried out once, and a line of a log is stored once.
"""

from __future__ import annotations


class Replay:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._start = 0
        """The number of the bytes before these."""

    def keep(self, data: bytes | bytearray) -> None:
        """These bytes were sent."""
        self._bytes += data

    def forget(self, received: int) -> None:
        """The other end has received so many bytes since the first channel began."""
        known = max(0, min(received - self._start, len(self._bytes)))
        del self._bytes[:known]
        self._start += known

    def after(self, received: int) -> bytes:
        """The bytes that an end that has received so many has not got. Raises `ValueError` for a count that cannot be."""
        if not self._start <= received <= self._start + len(self._bytes):
            raise ValueError(f"the other end has received {received} bytes; {self._start + len(self._bytes)} were sent")
        self.forget(received)
        return bytes(self._bytes)

    def take(self, received: int) -> bytes:
        """As `after`, and these bytes count as not sent."""
        data = self.after(received)
        self._bytes.clear()
        return data


def goodbye(secret: str) -> bytes:
    """Return what comes before the end of the orders if the controller has ended: without these words, only the channel may have ended.

    `secret`: of the connection. The words may come in the middle of an order (orchestrator/backends/connection/farewell.py).
    """
    return f"\norch-goodbye-{secret}\n".encode()
