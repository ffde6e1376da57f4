"""Reaching many hosts: a few at a time, again where that may help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ..model.spec import ClusterSpec
from . import Backend, Diagnosis, Errand, Transport
from .agents import AgentLink, Explain, NotReachedError

AT_ONCE = 8
"""Connections that are being made at the same time. An sshd drops them at random from ten on (MaxStartups), and a jump host carries all."""
TRIES = 6
FIRST_WAIT_S = 0.3


async def reach(
    backend: Backend, spec: ClusterSpec, links: Iterable[AgentLink], greet: Callable[[AgentLink], None], errand: Errand = "agent"
) -> dict[str, Diagnosis]:
    """Start every agent, and greet each that is up. Returns why the others are not, by host. Raises `UsageError`."""
    gate = asyncio.Semaphore(AT_ONCE)
    starts = [(link, backend.transport(spec, link.host, errand)) for link in links]
    said = await asyncio.gather(*(_reach_one(gate, link, transport, backend.explain, greet) for link, transport in starts))
    return {name: diagnosis for name, diagnosis in said if diagnosis is not None}


async def _reach_one(
    gate: asyncio.Semaphore, link: AgentLink, transport: Transport, explain: Explain, greet: Callable[[AgentLink], None]
) -> tuple[str, Diagnosis | None]:
    wait_s = FIRST_WAIT_S
    for left in reversed(range(TRIES)):
        async with gate:
            try:
                await link.open(transport, explain)
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    return link.host.name, error.diagnosis
            else:
                greet(link)
                return link.host.name, None
        import random  # wanted only now

        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # all that were refused together must not come back together
        wait_s *= 2
    raise AssertionError("the last try returns")
