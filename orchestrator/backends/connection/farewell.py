"""Lets all agents go at the end of a run: waits until each has sent the remaining output of its tasks; a second Ctrl-C stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from worker.words import few

from .agent_link import AgentLink


class Farewell:
    """Made for one run. `ready`: the hosts whose agents have sent their facts; the other agents hold nothing."""

    def __init__(self, links: Mapping[str, AgentLink], ready: Collection[str], note: Callable[[str], None]) -> None:
        self._links, self._ready, self._note = links, ready, note
        self._asked = False
        self.left: list[str] = []
        """The hosts whose remaining output was not fetched."""

    async def run(self, *, is_due: bool) -> None:
        """Return when every agent has ended; there is no limit as long as output comes.

        `is_due`: the end is due, so an agent that gives no sign of life is lost after a short time.
        """
        for link in self._links.values() if is_due else ():
            link.limit_silence()
        await asyncio.gather(*(link.close() if name in self._ready else link.kill() for name, link in self._links.items()))

    def on_stop(self) -> None:
        """The user asks for the end. The first call notes what is waited for; the second call leaves the rest of the output."""
        late = [name for name, link in self._links.items() if link.is_open and name not in self.left]
        if late and self._asked:
            self.left += late
            for name in late:
                self._links[name].drop()
        elif late:
            self._asked = True
            self._note(f"the run is over; still fetching the output of {few(late)}; Ctrl-C or orch down again leaves the rest there")
