"""Connects to hosts: a few at a time, and once more where another try may help."""

from __future__ import annotations

import asyncio

from .. import Transport
from .agent_link import AgentLink, Explain, NotReachedError

AT_ONCE = 8
"""Connections that are made at the same time. From ten on, an sshd drops some at random (MaxStartups), and a jump host carries all."""
TRIES = 6
FIRST_WAIT_S = 0.3


async def reach(link: AgentLink, transport: Transport, explain: Explain, gate: asyncio.Semaphore) -> None:
    """Start the agent of a host. `gate` admits `AT_ONCE` callers. Raises `NotReachedError`, `UsageError`, `OrchError`."""
    wait_s = FIRST_WAIT_S
    for left in reversed(range(TRIES)):
        async with gate:
            try:
                await link.open(transport, explain)
                return
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    raise
        import random  # most runs need no second try

        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # hosts that were refused together must not try again together
        wait_s *= 2
