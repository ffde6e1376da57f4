"""GPUs that are held for a run on its hosts, so that no other run of this user's takes them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from worker.protocol.messages import GpuHolder, TakeGpus

from ...model.planning.plan import Plan
from .agent_link import AgentLink


class GpuClaims:
    """Those of one run, over the `links` to its hosts. A host is always told all that the run is to hold there."""

    def __init__(self, links: Mapping[str, AgentLink]) -> None:
        self._links = links
        self._held: set[str] = set()

    async def acquire(self, planned: Plan) -> dict[str, tuple[GpuHolder, ...]]:
        """Hold the plan's GPUs, and no others any more. Returns who has them of hosts where other runs were faster; empty: all are held."""
        # Two runs that want all of several hosts meet at the first of them, where one wins, and do not take half of them each.
        order = sorted(planned.claims, key=lambda name: min((*planned.claims[name].alone, *planned.claims[name].shared)))
        given_up = sorted(self._held.difference(order))
        in_the_way: dict[str, tuple[GpuHolder, ...]] = {}
        for batch in filter(None, (given_up, order[:1], order[1:])):
            orders = [(name, planned.claims.get(name, TakeGpus())) for name in batch]
            answers = await asyncio.gather(*(self._links[name].request(order) for name, order in orders))
            self._held.update(batch)
            in_the_way = {name: answer.holders for name, answer in zip(batch, answers, strict=True) if answer.holders}
            if in_the_way:
                break
        return in_the_way
