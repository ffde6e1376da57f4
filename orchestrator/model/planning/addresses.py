"""The address by which the other hosts reach each host: chosen after trying, never guessed.

Each host has candidates, the likeliest first. Every host tries the candidates of the hosts that `partners` gives it, which are all others
in a cluster of usual size, at a port there. `choose` takes the first candidate that all of these have reached, or names the pairs of
hosts without a connection, and what to do.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence

from worker.protocol.messages import HostReady

from ...errors import OrchError
from ..settings.host_list import parse_ip

MOST_CANDIDATES = 8
MOST_IN_PAIRS = 32
"""In a cluster of at most so many hosts, all pairs are tried. More would take time and messages with the square of their number."""
PARTNERS = 8
"""How many others each host of a larger cluster tries, and by how many it is tried."""
MOST_LINES = 8
Refusals = Mapping[tuple[str, str, int], Mapping[str, str]]
"""By (from, to, port): why each address was not reached that was tried in vain."""


class UnconnectedError(OrchError):
    """Hosts have no connection to each other."""

    def __init__(self, text: str, pairs: Sequence[tuple[str, str]]) -> None:
        """`pairs`: the hosts without a connection between them; a host that no one can reach has a pair with itself."""
        super().__init__(text)
        self.pairs = tuple(pairs)

    def worst(self) -> list[str]:
        """The fewest hosts, more or less, without which all others have connections: again and again the one in the most pairs is left out,
        and of several the last."""
        found: list[str] = []
        pairs = self.pairs
        while pairs:
            counts: dict[str, int] = {}
            for pair in pairs:
                for host in sorted(set(pair)):
                    counts[host] = counts.get(host, 0) + 1
            found.append(max(counts, key=lambda host: (counts[host], host)))
            pairs = tuple(pair for pair in pairs if found[-1] not in pair)
        return found


def candidates(host: str, facts: HostReady, address: str = "", interface: str = "") -> tuple[str, ...]:
    """Addresses that may reach `host`. `address`, `interface`: the user's settings. Raises `OrchError` if there is none."""
    if address:
        return (address,)
    if interface:
        mine = [one.address for one in facts.addresses if one.interface == interface]
        # An address that is local to a link is valid on one interface only.
        found = sorted((own for own in mine if (number := parse_ip(own)) and not number.is_link_local), key=_is_6)
        lacks = f"interface {interface!r} with an address"
    else:
        # IPv4 first. The controller has used the address `arrived_at`, so its network connects several machines. Another address may be
        # that of a container bridge.
        own = dict.fromkeys(one.address for one in facts.addresses if _is_public(one.address))
        found = sorted(own, key=lambda one: (one != facts.arrived_at, _is_6(one)))
        lacks = "address that others could use"
    if not found:
        raise UnconnectedError(f"host {host} has no {lacks}; it has {_listed(facts) or 'none at all'}", [(host, host)])
    return tuple(found[:MOST_CANDIDATES])


def partners(hosts: Sequence[str], seed: str) -> dict[str, tuple[str, ...]]:
    """The hosts that each host tries: all others; in a large cluster the next one, which makes a ring of all, and some that `seed` draws.

    Each host is then tried by as many others as it tries. So a host that cannot be reached, or reaches no one, is found for certain, and
    a pair of hosts without a connection between them may be missed.
    """
    count = len(hosts)
    steps = set(range(1, count)) if count <= MOST_IN_PAIRS else {1}
    for number in itertools.count():
        if len(steps) >= min(PARTNERS, count - 1):
            break
        steps.add(1 + _draw(f"{seed} {number}") % (count - 1))
    return {host: tuple(hosts[(place + step) % count] for step in sorted(steps)) for place, host in enumerate(hosts)}


def _draw(seed: str) -> int:
    """A number that looks random, and is the same for the same seed."""
    import hashlib  # a slow import that only large clusters need

    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")


def describe_partners(count: int) -> str:
    """A line about the pairs of so many hosts that are not tried; empty if all are."""
    if count <= MOST_IN_PAIRS:
        return ""
    tried = f"each tries the next one of the list and {PARTNERS - 1} that are drawn ({count * PARTNERS:,} of {count * (count - 1):,} pairs)"
    return f"{count:,} hosts do not all try each other: {tried}"


def choose(known: Mapping[str, Sequence[str]], refusals: Refusals, facts: Mapping[str, HostReady]) -> dict[str, str]:
    """The address of each host, of the `known` and tried ones. Raises `OrchError` with a line for each pair that lacks one."""
    chosen: dict[str, str] = {}
    lines: list[str] = []
    pairs: list[tuple[str, str]] = []
    of_target: dict[str, dict[tuple[str, int], Mapping[str, str]]] = {}
    for (source, target, port), answers in sorted(refusals.items()):
        of_target.setdefault(target, {})[source, port] = answers
    for host, addresses in known.items():
        trials = of_target.get(host, {})
        good = [address for address in addresses if not any(address in answers for answers in trials.values())]
        if good:
            chosen[host] = good[0]
            continue
        failed = {pair: answers for pair, answers in trials.items() if all(address in answers for address in addresses)}
        lines += [_complain(source, host, port, answers, facts) for (source, port), answers in failed.items()]
        pairs += [(source, host) for source, _ in failed] or [(host, host)]
        if not failed:
            lines.append(f"no address of {host} is reached by all others ({', '.join(addresses)}); set address: for {host}")
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more pairs"]
    if lines:
        raise UnconnectedError("\n".join(lines), pairs)
    return chosen


def _complain(source: str, host: str, port: int, answers: Mapping[str, str], facts: Mapping[str, HostReady]) -> str:
    reasons = dict.fromkeys(answers.values())
    why = "; ".join(f"{reason} at {', '.join(a for a, r in answers.items() if r == reason)}" for reason in reasons)
    text = f"{source} cannot reach {host}:{port}: {why}"
    own = (one for one in facts[source].addresses if _is_public(one.address))
    networks = [ipaddress.ip_interface(f"{one.address}/{min(one.prefix, 128 if _is_6(one.address) else 32)}").network for one in own]
    numbers = [number for address in answers if (number := parse_ip(address))]
    if numbers and not any(number in network for number in numbers for network in networks):
        apart = f"{host}'s {numbers[0]} is on another network than {source}'s {_listed(facts[source])}"
        return f"{text}; {apart}: set address: or interface: for {host}"
    if "refused" in why or "timed out" in why:
        return f"{text}; a firewall between them? open the ports that ports: allows, or set address: for {host}"
    return f"{text}; set address: or interface: for {host}"


def with_port(address: str, port: object) -> str:
    """``10.0.0.1:41000``, ``[fd00::1]:41000``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _listed(facts: HostReady) -> str:
    return ", ".join(f"{one.address} ({one.interface})" for one in facts.addresses if _is_public(one.address))


def _is_6(address: str) -> bool:
    return ":" in address


def _is_public(address: str) -> bool:
    """True if other hosts can use the address: it is neither loopback nor valid on one link only."""
    number = parse_ip(address)
    return number is not None and not (number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast)
