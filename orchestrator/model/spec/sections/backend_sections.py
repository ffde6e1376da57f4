"""The section `backend:`, where the tasks run. Each kind of place has its own: a subclass of `BackendSpec`, and a row of `BACKENDS`.

``backend:`` takes the keys of all of them, and a spec's value is of the chosen one. docs/backends.md shows how a backend is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from worker.fast_dataclass import dataclass
from worker.settings.declare import setting

from ..derive import NAMED, make, struct_of
from ..findings import Findings
from ..kinds import Key, Listing, OneOf, Struct, Text
from ..tree import Node
from .host_list import SETUP, Hosts, HostSpec

Section: TypeAlias = "type[BackendSpec]"


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a spec says of the place where its tasks run."""

    SHORTHAND = "type"
    IMPLIED_BY = ""
    """The key that chooses this backend where there is no `type`."""

    type: str = setting(
        "local", "Where the tasks run.", kind="backends", example="ssh", words="ssh if there are hosts, else local", flag="--backend"
    )

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        """The hosts as far as the spec itself names them, each with its slots; empty: the backend alone knows its hosts."""
        return {}

    @property
    def copies_workdir(self) -> bool:
        """Whether the working directory lies elsewhere on the hosts than here."""
        return False

    def complaint(self) -> tuple[str, str] | None:
        """What is wrong with keys that are right one by one, and what to do; None: nothing is."""
        return None

    @staticmethod
    def class_of(data: Mapping[str, Any]) -> Section:
        """The section that a value's plain data are of (see worker/protocol/codec.py)."""
        return BACKENDS.get(str(data.get("type", "local")), BackendSpec)


@dataclass(frozen=True, slots=True)
class LocalSettings(BackendSpec):
    """This machine."""

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {"": None}


@dataclass(frozen=True, slots=True)
class SshSettings(BackendSpec):
    """Hosts that ssh reaches."""

    IMPLIED_BY = "hosts"
    MISPLACED = (
        ("workdir", "unknown key 'workdir'; how hosts get at it is code: shared, ship or unchecked; its path is workdir: of the cluster"),
    )

    hosts: tuple[HostSpec, ...] = setting(
        (),
        "The hosts for ssh, each with its number of slots (tasks), or with settings of its own.",
        kind=Hosts(),
        example="[hostA:2, hostB:2]",
        flag="-H --hosts",
        metavar="HOST:N,…",
        help="Run on these hosts over ssh, N tasks on each host. May be repeated.",
    )
    code: Literal["shared", "ship", "unchecked"] = setting(
        "shared",
        "How hosts get the working directory. shared: each host has the directory, and orch compares the program and the commit; ship: "
        "orch copies the directory, without files that git ignores; unchecked: as shared, and orch compares nothing.",
        label="the ways",
    )
    code_limit_mb: float = setting(100.0, "The largest directory that orch copies, in megabytes.", most=1_000_000)
    setup: tuple[str, ...] = setting(
        (), "Lines that each host's shell (bash) runs before Python starts.", kind=SETUP, example='["module load cuda"]'
    )
    ssh: tuple[str, ...] = setting(
        ("ssh",), "The ssh program and its options.", kind=Listing(Text()), example='["ssh", "-F", "cluster.conf"]'
    )
    lost_after_s: float = setting(20.0, "Seconds without a message after which a host counts as lost and its tasks end.", most=1_000_000)

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {host.name: host.slots for host in self.hosts}

    @property
    def copies_workdir(self) -> bool:
        return self.code == "ship"

    def complaint(self) -> tuple[str, str] | None:
        return None if self.hosts else ("backend ssh has no hosts", "name them: -H hostA:2,hostB:2, or backend: {hosts: ...}")


BACKENDS: dict[str, Section] = {"local": LocalSettings, "ssh": SshSettings}
"""The section of each backend, by its name. The first is that of a spec which says nothing."""


def read(given: Mapping[str, Any]) -> BackendSpec:
    """The value that checked keys of `backend:` mean."""
    implied = (name for name, section in BACKENDS.items() if section.IMPLIED_BY in given)
    name = given.get("type") or next(implied, next(iter(BACKENDS)))
    return make(BACKENDS[name], given, type=name)


def misplaced(name: str) -> Iterator[tuple[str, str]]:
    """The keys that choose another backend than the one of that name, and mean nothing to it; each with the other's name.

    Other keys of other backends may stand beside its own, and have no effect: a spec for ssh also runs with ``--backend local``.
    """
    for other, section in BACKENDS.items():
        if section.IMPLIED_BY and name in BACKENDS and section.IMPLIED_BY not in struct_of(BACKENDS[name]).keys:
            yield section.IMPLIED_BY, other


def paths() -> list[str]:
    """The paths of all keys of the section."""
    return [f"backend.{key}" for key in _keys()]


class ChosenBackend(Struct):
    """The mapping `backend:`. A key that several backends have is checked by the section of the one that is chosen."""

    __slots__ = ()

    def check(self, node: Node, path: str, findings: Findings) -> dict[str, Any] | None:
        chosen = node.value.get("type") if isinstance(node.value, dict) else None
        return replace(self, keys=_keys(chosen.text if chosen else "")).check_keys(node, path, findings)


def _keys(chosen: str = "") -> dict[str, Key]:
    sections = (*BACKENDS.values(), BACKENDS.get(chosen, BackendSpec))
    return {name: key for section in sections for name, key in struct_of(section).keys.items()}


def _kind() -> ChosenBackend:
    answers = {key: answer for section in BACKENDS.values() for key, answer in struct_of(section).misplaced.items()}
    return ChosenBackend(_keys(), BackendSpec.SHORTHAND, answers)


NAMED["backend"] = lambda declared: _kind()
NAMED["backends"] = lambda declared: OneOf(tuple(BACKENDS), "the backends")
