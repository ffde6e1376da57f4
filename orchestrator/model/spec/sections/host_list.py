"""The hosts of a cluster, in the notations of the command line, of a hostfile and of orch.yaml.

``hostA:2,user@hostB,[fd00::7]:4`` · the lines ``hostA slots=2`` and ``hostA:2`` of a hostfile · a list of such words or of mappings ·
a mapping from names. Slots are the number of tasks that a host takes. As in Open MPI, a host without a number has one slot, and the slots
of a host that is named twice are added.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from worker.fast_dataclass import dataclass
from worker.settings.declare import setting

from ....errors import Problem, SpecError
from ..derive import make, struct_of
from ..findings import Findings, quoted, shown
from ..kinds import JsonSchema, Listing, Struct, Text
from ..tree import Node, scalar

MAX_SLOTS = 100_000
_WORD = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<name>\[[^\]\s]*\]|[^:\s]*|[^\s]*:[^\s]*:[^\s]*?)(?::(?P<slots>[0-9]+))?")


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


SETUP = Listing(Text(_line_complaint, {"minLength": 1}))


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host in the spec. If a field is empty or None, ssh's configuration decides, or orch finds the value."""

    name: str = setting(..., "The name of the host, for ssh.", kind=Text(_name_complaint, {"minLength": 1}), example="hostA")
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


_NAMED = struct_of(HostSpec)
HOST = Struct({key: said for key, said in _NAMED.keys.items() if key != "name"}, shorthand="slots")
"""The keys of one host in a mapping from names."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """All notations. The value is a tuple of `HostSpec`, each host once."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[HostSpec, ...] | None:
        before = len(findings.problems)
        found = [(place, host) for place, host in self._all(node, path, findings) if host is not None]
        if len(findings.problems) > before or findings.full:
            return None
        if not found:
            findings.add(node, path, "names no host", "write hostA:2,hostB:2")
            return None
        merged: dict[str, HostSpec] = {}
        for place, host in found:
            known = merged.get(host.name)
            if known is not None:
                if replace(known, slots=None) != replace(host, slots=None):
                    findings.add(place, path, f"{host.name} is named twice, with different settings")
                    return None
                host = replace(host, slots=(known.slots or 1) + (host.slots or 1))
            merged[host.name] = host
        return tuple(merged.values())

    def _all(self, node: Node, path: str, findings: Findings) -> Iterator[tuple[Node, HostSpec | None]]:
        if isinstance(node.value, dict):
            for name, item in node.value.items():
                if complaint := _name_complaint(name):
                    findings.add(item, path, complaint)
                elif (given := {} if item.value is None else HOST.check(item, f"{path}.{quoted(name)[1:-1]}", findings)) is not None:
                    yield item, _make(name, given)
        elif isinstance(node.value, list):
            for index, item in enumerate(node.value):
                if isinstance(item.value, dict):
                    given = _NAMED.check(item, f"{path}[{index}]", findings)
                    if given is not None and "name" not in item.value and not findings.full:
                        findings.add(item, f"{path}[{index}]", "has no name", "write {name: hostA, slots: 2}")
                    elif given is not None and "name" in given:
                        yield item, _make(given["name"], given)
                else:
                    yield item, _word(item, f"{path}[{index}]", findings)
        elif isinstance(node.value, str):
            for word in filter(None, re.split(r"[,\s]+", node.value)):
                yield node, _word(scalar(word, node.place), path, findings)
        else:
            findings.add(node, path, f"must name hosts, not {shown(node)}", "write hostA:2,hostB:2")

    def json_schema(self) -> JsonSchema:
        word = {"type": "string", "minLength": 1}
        settings = {"anyOf": [*HOST.json_schema()["anyOf"], {"type": "null"}]}
        return {
            "anyOf": [
                word,
                {"type": "array", "minItems": 1, "items": {"anyOf": [word, _NAMED.json_schema()]}},
                {"type": "object", "minProperties": 1, "additionalProperties": settings},
            ]
        }


def _word(node: Node, path: str, findings: Findings) -> HostSpec | None:
    """``user@hostA:2``, ``[fd00::7]:2``, ``fd00::7``."""
    text = node.value if isinstance(node.value, str) else node.text
    found = _WORD.fullmatch(text) if not _is_address6(text) else None
    name, slots = (found["name"].strip("[]"), found["slots"]) if found else (text, None)
    user = (found["user"] or "") if found else ""
    if complaint := (_name_complaint(name) or (_user_complaint(user) if user else "")):
        findings.add(node, path, complaint, "write hostA:2, or [fd00::7]:2")
        return None
    if slots is not None and not 1 <= int(slots[:9]) <= MAX_SLOTS:
        findings.add(node, path, f"{name} has {slots:.9} slots: it must be from 1 to {MAX_SLOTS:,}")
        return None
    return HostSpec(name, int(slots) if slots else None, user=user)


def _make(name: str, given: Mapping[str, Any]) -> HostSpec:
    user, _, name = name.rpartition("@")
    return make(HostSpec, {"user": user or None, **given}, name=name)


def read_hostfile(text: str, name: str) -> Node:
    """The hosts of a hostfile: one ``hostA slots=2`` or ``hostA:2`` per line; # begins a comment. Raises `SpecError`."""
    items: list[Node] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        place = f"{name}:{number}"
        settings: dict[str, Node] = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals or key not in HOST.keys:
                problems.append(Problem(place, f"{quoted(word)} is not understood", "write hostA slots=2, or hostA:2"))
            settings[key] = scalar(value, place)
        if settings:
            settings["name"] = Node(words[0], place, words[0])
        items.append(Node(settings, place) if settings else Node(words[0], place, words[0]))
    if problems:
        raise SpecError(*problems)
    if not items:
        raise SpecError(Problem(name, "names no host", "write a line such as: hostA slots=2"))
    return Node(items, name)
