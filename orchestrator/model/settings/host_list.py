"""The hosts of a cluster, in the notations of the command line, of a hostfile and of orch.yaml.

``hostA:2,user@hostB,[fd00::7]:4`` · a mapping from names to slots or settings · a list of both · a hostfile with lines such as
``hostA slots=2`` and ``hostA:2``. Slots are the number of tasks that a host takes. As in Open MPI, a host without a number has one slot,
and the slots of a host that is named twice are added.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

from ...errors import Problem
from .derive import Named
from .findings import Findings, quoted
from .kinds import JsonSchema, Listing, Text
from .tree import Node, scalar

MAX_SLOTS = 100_000
_HOST = "(?![0-9]+$)[A-Za-z0-9_][A-Za-z0-9._-]*"
_USER = "[A-Za-z0-9_][A-Za-z0-9._@$-]*"
"""ssh would read a name with '-' in front as an option."""


def parse_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


SETUP = Listing(Text(r"[^\n]*\S[^\n]*", "must be one line; write one item for each"))


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host in the spec. If a field is empty or None, ssh's configuration decides, or orch finds the value."""

    SHORTHAND = "slots"

    name: str
    slots: int | None = setting(
        None, "The number of tasks that the host takes.", example="2", words="1, or no limit if no host has slots", least=1, most=MAX_SLOTS
    )
    address: str = setting(
        "",
        "The address by which the other hosts reach this host: a number or a name.",
        kind=Text("[A-Za-z0-9_:][A-Za-z0-9._:%-]*", "must be an address, or a name that has one"),
        example="10.0.0.5",
        words="orch tries the addresses of the host",
    )
    interface: str = setting(
        "",
        "The network interface by which the other hosts reach this host.",
        kind=Text(r"[^\s/:]{1,15}", "must be the name of a network interface, such as eth0"),
        example="eth0",
        words="orch tries the addresses of the host",
    )
    user: str = setting(
        "", "The user on that host.", kind=Text(_USER, "must be the name of a user"), example="me", words="the value in ssh's configuration"
    )
    port: int | None = setting(
        None, "The port of the host's sshd.", example="22", words="the value in ssh's configuration", least=1, most=65535
    )
    python: str = setting("", "The Python of the tasks on this host.", example="venv/bin/python", words="python of the cluster")
    setup: tuple[str, ...] | None = setting(
        None,
        "Lines that the host's shell runs before Python starts, in place of backend.setup.",
        kind=SETUP,
        example='["module load cuda"]',
        words="backend.setup",
    )


@dataclass(frozen=True, slots=True)
class Hosts(Named):
    """All notations. The value is a tuple of `HostSpec`, each host once."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        before = len(findings.found)
        merged: dict[str, HostSpec] = {}
        for given, item in _named(node):
            user, _, name = given.rpartition("@")
            is_host = re.fullmatch(_HOST, name) or (":" in name and parse_ip(name))
            if not is_host or (user and not re.fullmatch(_USER, user)):
                hint = "write [fd00::7]:2" if name.count(":") > 1 else "write hostA, or hostA:2 for two tasks"
                findings.add(path, Problem(item.place, f"{quoted(given)} is not the name of a host", hint))
            elif (host := self.check_one(given, item, path, findings)) is not None:
                host = replace(host, name=name, user=host.user or user)
                known = merged.get(name)
                if known is not None and replace(known, slots=None) != replace(host, slots=None):
                    findings.add(path, Problem(item.place, f"{name} is named twice, with different settings"))
                merged[name] = replace(host, slots=(known.slots or 1) + (host.slots or 1)) if known else host
        if not merged and len(findings.found) == before:
            findings.add(path, Problem(node.place, "names no host", "write hostA:2,hostB:2"))
        return tuple(merged.values()) if len(findings.found) == before else None

    def json_schema(self) -> JsonSchema:
        return {"anyOf": [{"type": ["string", "array"]}, Named.json_schema(self)]}


def _named(node: Node) -> Iterator[tuple[str, Node]]:
    """The name of each host, and its settings: a mapping, its slots, or nothing."""
    if isinstance(node.value, dict):
        yield from node.value.items()
    elif isinstance(node.value, list):
        for item in node.value:
            yield from _named(item)
    else:
        for word in filter(None, re.split(r"[,\s]+", node.text)):
            found = re.fullmatch(r"(.*@)?(\[[^\[\]]*:[^\[\]]*\]|[^:]*)(:[0-9]+)?", word)  # any other word is a name as a whole
            user, name, slots = found.groups(default="") if found else ("", word, "")
            yield user + (name.strip("[]") if ":" in name else name), scalar(slots.removeprefix(":"), node.place)


def read_hostfile(text: str, name: str) -> Node:
    """The hosts of a hostfile: one ``hostA slots=2`` or ``hostA:2`` per line; # begins a comment. `Hosts` checks them."""
    items: list[Node] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        place = f"{name}:{number}"
        host, *words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split() or [""]
        settings: dict[str, Node] = {}
        for key, equals, value in (word.partition("=") for word in words):
            settings[key] = scalar(value, place) if equals else Node(key, place, key)
        if host:
            items.append(Node({host: Node(settings, place)} if settings else host, place, host))
    return Node(items, name)
