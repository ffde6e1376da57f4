"""Hosts in every notation, what is refused, and where tasks go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.model.planning import plan
from orchestrator.model.settings import ClusterSpec, HostSpec, LocalSettings, SshSettings
from orchestrator.model.settings.document import read
from orchestrator.model.settings.host_list import read_hostfile
from orchestrator.model.settings.parse import parse, to_document
from tests.trees import value_of, wrap


def spec_of(backend: object, **keys: object) -> ClusterSpec:
    return parse(wrap({"script": "train.py", "backend": backend, **keys}, "o"), workdir="/w")


def problems_of(backend: object, **keys: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec_of(backend, **keys)
    return str(caught.value).splitlines()


def ssh_of(spec: ClusterSpec) -> SshSettings:
    assert isinstance(spec.backend, SshSettings)
    return spec.backend


A2, B = HostSpec("hostA", 2), HostSpec("hostB")
NO_HOST = "is not the name of a host\nfix: write hostA, or hostA:2 for two tasks"


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("hostA:2,hostB", (A2, B)),
        ("hostA:2 , hostB\n", (A2, B)),
        (["hostA:2", "hostB"], (A2, B)),
        ([{"hostA": {"slots": 2}}, "hostB"], (A2, B)),
        ({"hostA": 2, "hostB": None}, (A2, B)),
        ({"hostA": {"slots": 2}, "hostB": {}}, (A2, B)),
        ("me@hostA:3", (HostSpec("hostA", 3, user="me"),)),
        ({"me@hostA": 3}, (HostSpec("hostA", 3, user="me"),)),
        ("fd00::7,[fd00::8]:2,10.0.0.1:4", (HostSpec("fd00::7"), HostSpec("fd00::8", 2), HostSpec("10.0.0.1", 4))),
        ("me@[fd00::8],[fd00::9]", (HostSpec("fd00::8", user="me"), HostSpec("fd00::9"))),
        ("hostA,hostA", (A2,)),  # as Open MPI counts
        ("hostA:2,hostB,hostA", (HostSpec("hostA", 3), B)),
        (
            {"hostA": {"address": "10.0.0.5", "interface": "eth1", "port": 2222, "python": "~/v/bin/python", "setup": ["a", "b"]}},
            (HostSpec("hostA", None, "10.0.0.5", "eth1", "", 2222, "~/v/bin/python", ("a", "b")),),
        ),
    ],
)
def test_hosts_in_every_notation(hosts: Any, expected: Any) -> None:
    spec = spec_of({"hosts": hosts})
    assert ssh_of(spec).hosts == expected
    assert spec.backend.type == "ssh"
    assert parse(read(json.dumps(to_document(spec)), "spec.yaml"), workdir="/") == spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hostA slots=2\nhostB\n", (A2, B)),
        ("# mine\nhostA:2   # two\n\n  hostB", (A2, B)),
        ("hostA slots=1 port=2222 user=me", (HostSpec("hostA", 1, user="me", port=2222),)),
        ("hostA\nhostA\nhostB slots=3", (A2, HostSpec("hostB", 3))),
        ("\ufeffhostA\tslots = 2\r\n\r\nhostB\r\n", (A2, B)),
    ],
)
def test_a_hostfile_in_both_notations(text: str, expected: Any) -> None:
    assert parse(wrap({"script": "a", "backend": {}}, "o"), workdir="/").backend == LocalSettings()
    document = wrap({"script": "a"}, "o")
    value_of(document)["backend"] = type(document)({"hosts": read_hostfile(text, "hosts")}, "hosts")
    assert ssh_of(parse(document, workdir="/")).hosts == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n# nothing\n", "hosts: backend.hosts: names no host\nfix: write hostA:2,hostB:2"),
        ("hostA\nhostB slts=4", "hosts:2: backend.hosts.hostB: unknown key 'slts'\nfix: did you mean 'slots'?"),
        (
            "hostA user=-l\nhostB port=0",
            "hosts:1: backend.hosts.hostA.user: must be the name of a user\nhosts:2: backend.hosts.hostB.port: must be at least 1, not 0",
        ),
        ("hostA:2 user=me", f"hosts:1: backend.hosts: 'hostA:2' {NO_HOST}"),
        ("hostA slots", "hosts:1: backend.hosts.hostA.slots: must be a whole number, not 'slots'"),
    ],
)
def test_a_hostfile_that_is_refused_says_where(text: str, problem: str) -> None:
    document = wrap({"script": "a"}, "o")
    value_of(document)["backend"] = type(document)({"hosts": read_hostfile(text, "hosts")}, "hosts")
    with pytest.raises(SpecError) as caught:
        parse(document, workdir="/")
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("hosts", "tasks", "expected"),
    [
        ("a:2,b:2", None, {"a": 2, "b": 2}),  # nobody says how many: one for each slot
        ("a,b,c", None, {"a": 1, "b": 1, "c": 1}),
        ("a:2,b:1", {"ps": 1}, {"a": 2, "b": 1}),
        ("a:1,b:3", {"worker": 3}, {"a": 1, "b": 2}),
        ("a:4,b:4", {"worker": 2}, {"a": 2, "b": 0}),
        ("a,b", {"worker": 5}, {"a": 3, "b": 2}),  # no host has slots: spread
    ],
)
def test_tasks_go_to_slots(hosts: str, tasks: dict[str, int] | None, expected: dict[str, int]) -> None:
    spec = spec_of({"hosts": hosts}, **({"tasks": tasks} if tasks else {}))
    placement = plan.place(spec, {host.name: host.slots for host in ssh_of(spec).hosts})
    assert {host: len(ids) for host, ids in placement.items()} == expected


def test_too_few_slots_are_counted() -> None:
    spec = spec_of({"hosts": "a:2,b"}, tasks={"worker": 4})
    with pytest.raises(SpecError, match=r"4 tasks do not fit into 3 slots \(a:2, b:1\)\nfix: name more slots, or fewer tasks"):
        plan.place(spec, spec.backend.named_slots)
