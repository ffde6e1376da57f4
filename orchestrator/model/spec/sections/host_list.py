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

from worker.fast_dataclass import dataclass
from worker.settings.declare import setting

from ..derive import Named
from ..findings import Findings, quoted, shown
from ..kinds import JsonSchema, Listing, Text
from ..tree import Node, scalar

MAX_SLOTS = 100_000


def _name_complaint(text: str) -> str:
    name = text.rpartition("@")[2]
    if not _is_address6(name) and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        return f"{quoted(name)} is not the name of a host"  # ssh would read a name with '-' in front as an option
    return "" if "@" not in text else _user_complaint(text.rpartition("@")[0])


def _user_complaint(text: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._@$-]*", text) else f"{quoted(text)} is not the name of a user"


def _address_complaint(text: str) -> str:
    return "" if _is_address6(text) or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", text) else "must be an address, or a name that has one"


def _interface_complaint(text: str) -> str:
    return "" if re.fullmatch(r"[^\s/:]{1,15}", text) else "must be the name of a network interface, such as eth0"


def _line_complaint(text: str) -> str:
    if not text.strip():
        return "must not be empty"
    return "must be one line; write one item for each" if "\n" in text else ""


def parse_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _is_address6(text: str) -> bool:
    number = parse_ip(text)
    return number is not None and number.version == 6


SETUP = Listing(Text(_line_complaint))


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host in the spec. If a field is empty or None, ssh's configuration decides, or orch finds the value."""

    SHORTHAND = "slots"

    name: str
    """The name of the host, for ssh."""
    slots: int | None = setting(
        None, "The number of tasks that the host takes.", example="2", words="1, or no limit if no host has slots", least=1, most=MAX_SLOTS
    )
    address: str = setting(
        "",
        "The address by which the other hosts reach this host: a number or a name.",
        kind=Text(_address_complaint),
        example="10.0.0.5",
        words="orch tries the addresses of the host",
    )
    interface: str = setting(
        "",
        "The network interface by which the other hosts reach this host.",
        kind=Text(_interface_complaint),
        example="eth0",
        words="orch tries the addresses of the host",
    )
    user: str = setting("", "The user on that host.", kind=Text(_user_complaint), example="me", words="the value in ssh's configuration")
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

    def check(self, node: Node, path: str, findings: Findings) -> tuple[HostSpec, ...] | None:
        before = len(findings.found)
        merged: dict[str, HostSpec] = {}
        for name, item in self._named(node, path, findings):
            if complaint := _name_complaint(name):
                has_settings = re.search(r":[0-9]+$", name)  # the slots are a part of the name only beside settings
                hint = "in a mapping: hostA: {slots: 2}; in a hostfile: hostA slots=2" if has_settings else "write hostA:2, or [fd00::7]:2"
                findings.add(item, path, complaint, hint)
            elif isinstance(item.value, str):
                hint = "write {hostA: 2}, or {hostA: {slots: 2}}"
                findings.add(item, f"{path}.{name}", f"must be slots or settings, not {shown(item)}", hint)
            elif (host := self.check_one(name, item, path, findings)) is not None:
                user, _, name = name.rpartition("@")
                host = replace(host, name=name, user=host.user or user)
                known = merged.get(name)
                if known is not None and replace(known, slots=None) != replace(host, slots=None):
                    findings.add(item, path, f"{name} is named twice, with different settings")
                merged[name] = replace(host, slots=(known.slots or 1) + (host.slots or 1)) if known else host
        if not merged and len(findings.found) == before:
            findings.add(node, path, "names no host", "write hostA:2,hostB:2")
        return tuple(merged.values()) if len(findings.found) == before else None

    def _named(self, node: Node, path: str, findings: Findings) -> Iterator[tuple[str, Node]]:
        """The name of each host, and its settings: a mapping, its slots, or nothing."""
        if isinstance(node.value, dict):
            yield from node.value.items()
        elif isinstance(node.value, list):
            for item in node.value:
                yield from self._named(item, path, findings)
        elif isinstance(node.value, str):
            for word in filter(None, re.split(r"[,\s]+", node.value)):
                name, _, slots = word.rpartition(":")
                has_slots = slots.isdigit() and not _is_address6(word.rpartition("@")[2])
                name = re.sub(r"(^|@)\[([^\[\]]*:[^\[\]]*)\]$", r"\1\2", name if has_slots else word)  # around an IPv6 address
                yield name, Node({"slots": scalar(slots, node.place)} if has_slots else None, node.place)
        else:
            findings.add(node, path, f"must name hosts, not {shown(node)}", "write hostA:2,hostB:2")

    def json_schema(self) -> JsonSchema:
        names = Named.json_schema(self)
        word = {"type": "string"}
        return {"anyOf": [word, names, {"type": "array", "items": {"anyOf": [word, names]}}]}


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
            items.append(Node({host: Node(settings, place)} if settings else host, place))
    return Node(items, name)
