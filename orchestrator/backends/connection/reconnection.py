"""A new channel to an agent that has outlived the old one; worker/host/network/door.py is the agent's side."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import Transport, remote_worker
from .agent_pipes import AgentProgram
from .agent_process import begin, open_log

FIRST_PAUSE_S = 0.5
"""The pause after the first try. Each further pause is half as long again, up to `LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S = 2.0
BRIEF_S = 1.0
"""How long a try keeps others waiting, and how long no one is told of the try: a host that is down must not hold up those that are not."""

SHORTEST_LIMIT_S = 5.0


def limit_of_try(limit_s: float, silence_s: float) -> float:
    """The most seconds of a try: a silent connection must leave time for another try before the host is lost."""
    return min(limit_s, max(SHORTEST_LIMIT_S, silence_s / 2))


def pauses() -> Iterator[float]:
    """The pauses between the tries: hosts that were cut together must not try again together."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(0.5, 1.5)
        pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)


class NobodyWaitsError(Exception):
    """The host was reached, and there is no agent any more."""


class Return:
    """One try to come back: ``process, received = await Return(...).made``. `give_up` ends the try, and what it has started."""

    def __init__(self, transport: Transport, argv: Sequence[str], log: Path, door: str, secret: str, received: int) -> None:
        """`door`, `secret`: the agent's. `received`: how many bytes of its frames have come."""
        self._transport, self._argv, self._log, self._door = transport, argv, log, door
        self._secret, self._received = secret, received
        self.made = asyncio.create_task(self._make())
        """The new channel, and the number of bytes of orders that have come to the agent. Raises `NobodyWaitsError`; for a try that failed,
        `OSError` or `EOFError`."""

    async def give_up(self) -> None:
        self.made.cancel()
        await asyncio.wait([self.made])

    async def _make(self) -> tuple[AgentProgram, int]:
        with open_log(self._log) as stderr:
            process = begin(self._transport, self._argv, stderr.fileno(), self._secret)
        try:
            await process.connect()
            assert process.stdin is not None
            assert process.stdout is not None
            first, mark = remote_worker.come_back(self._door, self._secret, self._received)
            process.stdin.write(first)
            try:
                await process.stdout.readuntil(mark)
                received = int.from_bytes(await process.stdout.readexactly(8), "big")
            except asyncio.IncompleteReadError:
                raise EOFError from None
            except asyncio.LimitOverrunError:
                raise OSError("its shell prints without end") from None
            return process, received
        except BaseException as error:
            if not isinstance(error, EOFError):  # otherwise the program ends by itself, with a code
                process.kill()
            code = await process.wait()
            if code == remote_worker.GONE:
                raise NobodyWaitsError from None
            raise
