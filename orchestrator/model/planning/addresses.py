"""The address by which the other hosts reach each host: chosen after trying, never guessed.

Each host has candidates, the likeliest first. Every host tries the candidates of every other host at a port there. `choose` takes the
first candidate that all others have reached, or names the pairs of hosts without a connection, and what to do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from worker.fast_dataclass import dataclass
from worker.protocol.messages import HostReady

from ...errors import OrchError
from ..spec.sections.host_list import parse_ip

MOST_CANDIDATES = 8
MOST_LINES = 8
Tried = Mapping[tuple[str, str, int], Mapping[str, str]]
"""By (from, to, port): for each address that was tried, why it was not reached; empty: it was reached."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's settings for the address of a host; both may be empty."""

    address: str = ""
    interface: str = ""


def candidates(host: str, wish: Wish, facts: HostReady) -> tuple[str, ...]:
    """Addresses by which the other hosts may reach `host`. Raises `OrchError` if there is none, or if the host lacks the interface."""
    if wish.address:
        return (wish.address,)
    if wish.interface:
        mine = [one.address for one in facts.addresses if one.interface == wish.interface]
        found = tuple(
            address for address in mine if not ipaddress.ip_address(address).is_link_local
        )  # such an address is valid on one interface only
        if not found:
            raise OrchError(f"host {host} has no interface {wish.interface!r} with an address; it has {_listed(facts) or 'none at all'}")
        return tuple(sorted(found, key=_is_6))
    own = [one.address for one in facts.addresses if _is_public(one.address)]
    # The controller has used this address, so its network connects several machines. Another address may be that of a container bridge.
    first = [facts.arrived_at] if facts.arrived_at in own else []
    found = tuple(dict.fromkeys([*first, *sorted(own, key=_is_6)]))[:MOST_CANDIDATES]
    if not found:
        raise OrchError(f"host {host} has no address that others could use; it has {_listed(facts) or 'none at all'}")
    return found


def choose(known: Mapping[str, Sequence[str]], tried: Tried, facts: Mapping[str, HostReady]) -> dict[str, str]:
    """The address of each host. Raises `OrchError` with a line for each pair of hosts without a connection."""
    chosen: dict[str, str] = {}
    lines: list[str] = []
    for host, addresses in known.items():
        trials = {(source, port): answers for (source, target, port), answers in sorted(tried.items()) if target == host}
        good = [address for address in addresses if all(not answers.get(address, "was not tried") for answers in trials.values())]
        if good:
            chosen[host] = good[0]
            continue
        for (source, port), answers in trials.items():
            if all(answers.get(address) for address in addresses):
                lines.append(_complain(source, host, port, answers, facts))
        if not any(all(answers.get(address) for address in addresses) for answers in trials.values()):
            lines.append(f"no address of {host} is reached by all others ({', '.join(addresses)}); set address: for {host}")
    if lines:
        raise OrchError("\n".join([*lines[:MOST_LINES], *([f"and {len(lines) - MOST_LINES} more pairs"] if lines[MOST_LINES:] else [])]))
    return chosen


def _complain(source: str, host: str, port: int, answers: Mapping[str, str], facts: Mapping[str, HostReady]) -> str:
    reasons = dict.fromkeys(answers.values())
    why = "; ".join(f"{reason} at {', '.join(a for a, r in answers.items() if r == reason)}" for reason in reasons)
    text = f"{source} cannot reach {host}:{port}: {why}"
    if apart := _apart(source, answers, facts):
        networks = f"{host}'s {apart[0]} is on another network than {source}'s {_listed(facts[source])}"
        return f"{text}; {networks}: set address: or interface: for {host}"
    if "refused" in why or "timed out" in why:
        return f"{text}; a firewall between them? open the ports that ports: allows, or set address: for {host}"
    return f"{text}; set address: or interface: for {host}"


def _apart(source: str, answers: Mapping[str, str], facts: Mapping[str, HostReady]) -> list[str]:
    """The addresses, if none of them is on a network of the source."""
    networks = [ipaddress.ip_interface(f"{one.address}/{one.prefix}").network for one in facts[source].addresses if _is_public(one.address)]
    found = {address: number for address in answers if (number := parse_ip(address))}
    return [] if any(number in network for number in found.values() for network in networks) else [*found]


def with_port(address: str, port: object) -> str:
    """``10.0.0.1:41000``, ``[fd00::1]:41000``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _listed(facts: HostReady) -> str:
    return ", ".join(f"{one.address} ({one.interface})" for one in facts.addresses if _is_public(one.address))


def _is_6(address: str) -> bool:
    return ":" in address


def _is_public(address: str) -> bool:
    """Whether other hosts can use the address: it is neither loopback nor valid on one link only."""
    number = parse_ip(address)
    return number is not None and not (number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast)
