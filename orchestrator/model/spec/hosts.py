"""The hosts of a cluster, as a user names them: on the command line, in a hostfile, in orch.yaml.

``hostA:2,user@hostB,[fd00::7]:4`` · a hostfile's ``hostA slots=2`` and ``hostA:2``, a line each · a list of such words or of
mappings · a mapping from names. Slots are how many tasks a host takes, as Open MPI counts them: a host that is named again has so
many more, and one without a number has one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from worker.records import dataclass

from ...errors import Problem, SpecError
from .findings import Findings, quoted, shown
from .kinds import Integer, JsonSchema, Key, Listing, Number, OneOf, Struct, Text
from .sections import HostSpec
from .tree import Node, scalar

MAX_SLOTS = 100_000
MAX_SECONDS = 1_000_000
MAX_MB = 1_000_000
BACKENDS = ("local", "ssh")
_WORD = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<name>\[[^\]\s]*\]|[^:\s]*|[^\s]*:[^\s]*:[^\s]*?)(?::(?P<slots>[0-9]+))?")


def _name_complaint(text: str) -> str:
    name = text.rpartition("@")[2]
    if not _is_address6(name) and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        return f"{quoted(name)} is not the name of a host"  # one that began with '-' would be an option of ssh
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


def _is_address6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


SETUP = Listing(Text(_line_complaint, {"minLength": 1}))
_HOST_KEYS = {
    "slots": Key(Integer(1, MAX_SLOTS), "How many tasks it takes.", "2", "1, or no limit if no host has any"),
    "address": Key(Text(_address_complaint), "How the other hosts reach it.", "10.0.0.5", "found out"),
    "interface": Key(Text(_interface_complaint), "The interface by which the other hosts reach it.", "eth0", "found out"),
    "user": Key(Text(_user_complaint), "Who logs in there.", "me", "what ssh's own configuration says"),
    "port": Key(Integer(1, 65535), "Where its sshd listens.", "22", "what ssh's own configuration says"),
    "python": Key(Text(), "The Python of its tasks.", "venv/bin/python", "python of the cluster"),
    "setup": Key(SETUP, "Lines for its shell before Python starts, in place of backend.setup.", '["module load cuda"]', "backend.setup"),
}
HOST = Struct(_HOST_KEYS, shorthand="slots")
"""What a mapping from names says of each."""
_NAMED = Struct({"name": Key(Text(_name_complaint, {"minLength": 1}), "Its name, for ssh.", "hostA"), **_HOST_KEYS})


@dataclass(frozen=True, slots=True)
class Hosts:
    """All notations. Gives a tuple of `HostSpec`, each host once."""

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
                        yield item, _make(given.pop("name"), given)
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
    return HostSpec(name, **{**({"user": user} if user else {}), **given})


def read_hostfile(text: str, name: str) -> Node:
    """The hosts of a hostfile, as a document's value: ``hostA slots=2`` or ``hostA:2``, one a line; # begins a comment.

    Raises `SpecError`.
    """
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
            if not equals or key not in _HOST_KEYS:
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


BACKEND = Struct(
    {
        "type": Key(OneOf(BACKENDS, "the backends"), "The kind of place.", "ssh", "ssh if there are hosts, else local"),
        "hosts": Key(Hosts(), "The hosts for ssh, with their slots, or with settings of their own.", "[hostA:2, hostB:2]", "none"),
        "code": Key(
            OneOf(("shared", "ship", "unchecked"), "the ways"),
            "How hosts get at workdir: shared (it is there, and compared), ship (it is copied, without what git ignores) or unchecked.",
            "shared",
            "shared",
        ),
        "code_limit_mb": Key(Number(MAX_MB), "The most that is copied, in megabytes.", "100", "100"),
        "setup": Key(SETUP, "Lines for each host's shell (bash) before Python starts.", '["module load cuda"]', "none"),
        "ssh": Key(Listing(Text()), "The ssh program and its options.", '["ssh", "-F", "cluster.conf"]', "[ssh]"),
        "lost_after_s": Key(Number(MAX_SECONDS), "Seconds of silence after which a host is lost, and its tasks end.", "20", "20"),
    },
    shorthand="type",
    misplaced={
        "workdir": "unknown key 'workdir'; how hosts get at it is code: shared, ship or unchecked; its path is workdir: of the cluster"
    },
)
