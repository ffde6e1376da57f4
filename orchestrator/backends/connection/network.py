"""How the hosts of a run reach each other: asks every agent to try every other one, and has the answers judged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from worker.protocol.messages import HostReady, Target, Try

from ...model.planning import addresses
from .. import Host
from .agent_link import AgentLink


class Network:
    """The hosts of one run. One host alone has nobody to reach."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self._awaited: set[str] = set()
        self.words = {name: os.urandom(8).hex() if len(hosts) > 1 else "" for name in hosts}
        """What each host says to those that try it; empty where nobody does."""

    @property
    def awaited(self) -> list[str]:
        """The hosts that have not said yet how their tries went."""
        return [name for name in self._hosts if name in self._awaited]

    async def find_addresses(self, links: Mapping[str, AgentLink], facts: Mapping[str, HostReady]) -> dict[str, str]:
        """The address of each host. Raises `OrchError`."""
        if not any(self.words.values()):
            return {name: host.address or "127.0.0.1" for name, host in self._hosts.items()}
        known = {
            name: addresses.candidates(name, addresses.Wish(host.address, host.interface), facts[name])
            for name, host in self._hosts.items()
        }
        ports = {name: found.ports[0] for name, found in facts.items() if found.ports}
        tried: dict[tuple[str, str], dict[str, str]] = {}

        async def have_tried(name: str) -> None:
            # A task reaches its neighbour on the same host by the same address.
            others = [other for other in ports if other != name or len(facts[name].ports) > 1]
            targets = tuple(Target(other, ports[other], self.words[other], tuple(known[other])) for other in others)
            for result in (await links[name].request(Try(targets))).results:
                tried.setdefault((name, result.host), {})[result.address] = result.refusal
            self._awaited.discard(name)

        self._awaited = set(links)
        await asyncio.gather(*(have_tried(name) for name in links))
        return addresses.choose(known, ports, tried, facts)
