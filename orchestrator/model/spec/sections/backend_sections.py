"""The section `backend:`, where the tasks run. Each backend has a subclass of `BackendSpec` and a row of `BACKENDS`.

``backend:`` accepts the keys of all backends; the value in a spec is of the chosen class.
docs/adding-a-backend.md explains how to add a backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

from ..derive import make, struct_of
from ..kinds import Listing, OneOf, Struct, Text
from .host_list import SETUP, Hosts, HostSpec

Section: TypeAlias = "type[BackendSpec]"


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """The place where the tasks of a spec run."""

    SHORTHAND = "type"
    IMPLIED_BY = ""
    """The key that chooses this backend if there is no `type`."""

    type: str = setting(
        "local",
        "Where the tasks run.",
        kind=lambda: OneOf(tuple(BACKENDS)),
        example="ssh",
        words="ssh if there are hosts, else local",
        flag="--backend",
    )

    HAS_PRIVATE_NETWORK = False
    """Whether the tasks can have a network that nothing outside reaches."""

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        """The hosts in the spec, each with its slots; empty if only the backend knows its hosts."""
        return {}

    @property
    def copies_workdir(self) -> bool:
        """Whether orch copies the working directory, so that its path on the hosts differs."""
        return False

    def complaint(self) -> tuple[str, str] | None:
        """What is wrong between the keys, and what to do; None: nothing."""
        return None

    @staticmethod
    def class_of(data: Mapping[str, Any]) -> Section:
        """The class of a value's plain data (see worker/values/codec.py)."""
        return BACKENDS.get(str(data.get("type", "local")), BackendSpec)


@dataclass(frozen=True, slots=True)
class LocalSettings(BackendSpec):
    """This machine."""

    HAS_PRIVATE_NETWORK = True

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {"": None}


@dataclass(frozen=True, slots=True)
class SshSettings(BackendSpec):
    """Hosts that ssh reaches."""

    IMPLIED_BY = "hosts"

    hosts: tuple[HostSpec, ...] = setting(
        (),
        "The hosts for ssh, each with its number of slots (tasks), or with settings of its own.",
        kind=Hosts(HostSpec),
        example="[hostA:2, hostB:2]",
        flag="-H --hosts",
        metavar="HOST:N,…",
    )
    code: Literal["shared", "ship", "unchecked"] = setting(
        "shared",
        "How hosts get the working directory. shared: each host has the directory, and orch compares the program and the commit; ship: "
        "orch copies the directory, without files that git ignores; unchecked: as shared, and orch compares nothing.",
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
"""The section of each backend, by name. The first is the default."""


def read(given: Mapping[str, Any]) -> BackendSpec:
    """The value of `backend:` from its checked keys."""
    implied = (name for name, section in BACKENDS.items() if section.IMPLIED_BY in given)
    name = given.get("type") or next(implied, next(iter(BACKENDS)))
    return make(BACKENDS[name], given, type=name)


def misplaced(name: str) -> Iterator[tuple[str, str]]:
    """The keys that backend `name` does not have and that choose another backend; each with the name of the other.

    The remaining keys of other backends have no effect: a spec for ssh also runs with ``--backend local``.
    """
    for other, section in BACKENDS.items():
        if section.IMPLIED_BY and name in BACKENDS and section.IMPLIED_BY not in struct_of(BACKENDS[name]).keys:
            yield section.IMPLIED_BY, other


def keys_of_all() -> Struct:
    """The type of the mapping `backend:`, with the keys of all backends."""
    return Struct({name: key for section in BACKENDS.values() for name, key in struct_of(section).keys.items()}, BackendSpec.SHORTHAND)
