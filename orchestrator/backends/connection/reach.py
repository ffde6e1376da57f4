"""Connecting to hosts: a few at a time, again where that may help."""

from __future__ import annotations

import asyncio

from .. import Transport
from .agent_link import AgentLink, Explain, NotReachedError

AT_ONCE = 8
"""Connections that are being made at the same time. An sshd drops them at random from ten on (MaxStartups), and a jump host carries all."""
TRIES = 6
FIRST_WAIT_S = 0.3


async def reach(link: AgentLink, transport: Transport, explain: Explain, gate: asyncio.Semaphore) -> None:
    """Start the agent of a host. `gate` lets `AT_ONCE` connections be made. Raises `NotReachedError`, `UsageError`, `OrchError`."""
    wait_s = FIRST_WAIT_S
    for left in reversed(range(TRIES)):
        async with gate:
            try:
                await link.open(transport, explain)
                return
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    raise
        import random  # wanted only now

        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # all that were refused together must not come back together
        wait_s *= 2
