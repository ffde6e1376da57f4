"""The end of a run's links: each agent goes once all of its tasks' output is here, unless nobody wants to wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from worker.protocol.messages import few

from .agent_link import AgentLink


class Farewell:
    """Made for one run, which is over. `greeted`: the hosts that have answered; one that has not holds nothing that it could give back."""

    def __init__(self, links: Mapping[str, AgentLink], greeted: Collection[str], say: Callable[[str], None]) -> None:
        self._links, self._greeted, self._say = links, greeted, say
        self._asked = False
        self.left: list[str] = []
        """The hosts that were not waited for."""

    async def take(self, *, hurried: bool) -> None:
        """Return when every agent is gone. As long as output comes there is no limit. `hurried`: the run was to end by now, so an agent
        that gives no sign of life is not waited for.
        """
        for link in self._links.values() if hurried else ():
            link.hurry()
        await asyncio.gather(*(link.close() if name in self._greeted else link.kill() for name, link in self._links.items()))

    def hurry(self) -> None:
        """Somebody does not want to wait: the first time they are told for what, the next time it stays where it is."""
        late = [name for name, link in self._links.items() if link.is_open]
        if late and self._asked:
            self.left += late
            for name in late:
                self._links[name].drop()
        elif late:
            self._asked = True
            self._say(f"the run is over; still fetching the output of {few(late)}; once more (Ctrl-C or orch down) leaves it there")
