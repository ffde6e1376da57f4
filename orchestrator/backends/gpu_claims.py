"""GPUs that are held for a run on its hosts, so that no other run of this user's takes them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from worker.contract import GpuHolder, GpusTaken, TakeGpus

from ..model.plan import Plan
from .agents import AgentLink


class GpuClaims:
    """Those of one run, over the `links` to its hosts. A host is always told all that the run is to hold there."""

    def __init__(self, links: Mapping[str, AgentLink]) -> None:
        self._links = links
        self._held: set[str] = set()
        self._awaited: set[str] = set()
        self._in_the_way: dict[str, tuple[GpuHolder, ...]] = {}
        self._answered: asyncio.Future[None] | None = None

    async def take(self, planned: Plan) -> dict[str, tuple[GpuHolder, ...]]:
        """Hold the plan's GPUs, and no others any more. Returns who has them of hosts where other runs were faster; empty: all are held."""
        # Two runs that want all of several hosts meet at the first of them, where one wins, and do not take half of them each.
        order = sorted(planned.claims, key=lambda name: min((*planned.claims[name].alone, *planned.claims[name].shared)))
        given_up = sorted(self._held.difference(order))
        self._in_the_way = {}
        for batch in filter(None, (given_up, order[:1], order[1:])):
            await self._claim({name: planned.claims.get(name, TakeGpus()) for name in batch})
            self._held.update(batch)
            if self._in_the_way:
                break
        return self._in_the_way

    async def _claim(self, orders: Mapping[str, TakeGpus]) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        self._awaited = set(orders)
        for name, order in orders.items():
            self._links[name].order(order)
        await self._answered

    def hear(self, host: str, frame: GpusTaken) -> None:
        """One host's answer."""
        self._awaited.discard(host)
        if frame.holders:
            self._in_the_way[host] = frame.holders
        if not self._awaited and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
