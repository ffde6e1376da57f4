"""Reaching many hosts: a few at a time, again where that may help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from . import Diagnosis, Transport
from .agents import AgentLink, NotReachedError

AT_ONCE = 8
"""Connections that are being made at the same time. An sshd drops them at random from ten on (MaxStartups), and a jump host carries all."""
TRIES = 6
FIRST_WAIT_S = 0.3


async def reach(links: Iterable[tuple[AgentLink, Transport]], greet: Callable[[AgentLink], None]) -> dict[str, Diagnosis]:
    """Start every agent, and greet each that is up. Returns why the others are not, by host. Raises `UsageError`."""
    gate = asyncio.Semaphore(AT_ONCE)
    said = await asyncio.gather(*(_reach_one(gate, link, transport, greet) for link, transport in links))
    return {name: diagnosis for name, diagnosis in said if diagnosis is not None}


async def _reach_one(
    gate: asyncio.Semaphore, link: AgentLink, transport: Transport, greet: Callable[[AgentLink], None]
) -> tuple[str, Diagnosis | None]:
    wait_s = FIRST_WAIT_S
    for left in reversed(range(TRIES)):
        async with gate:
            try:
                await link.open(transport)
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    return link.host.name, error.diagnosis
            else:
                greet(link)
                return link.host.name, None
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # all that were refused together must not come back together
        wait_s *= 2
    raise AssertionError("the last try returns")
