"""What the two kinds of agents have in common: the pipes to an agent, and the error of one that cannot be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

MOST_BYTES = 1024 * 1024
"""How much is read ahead of a program's stdout, and how much a shell may print before an agent's mark."""


def make_protocol(reader: asyncio.StreamReader) -> asyncio.StreamReaderProtocol:
    """The protocol of a pipe or socket of an agent."""
    import asyncio

    class Protocol(asyncio.StreamReaderProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(None)  # an agent that has not read all of its orders has ended, and `wait` returns how

    return Protocol(reader)


class NotUsedError(Exception):
    """A warm process exists and cannot be used; the message, a line for the user, says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the warm process is not used: {why}")
