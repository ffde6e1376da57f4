"""The words in which the two ends, and the hosts among themselves, see whether they reach each other; a part of `contract`."""

from __future__ import annotations

from typing import Annotated

from ..fast_dataclass import dataclass
from .codec import Between, OsText, Port


@dataclass(frozen=True, slots=True)
class Target:
    """A host to be tried from another one, or a task: at each of its addresses, a port that says `word`.

    Without a `word` it is enough that a connection is made: a task's runtime says nothing of ours.
    """

    host: OsText
    port: Port
    word: str
    addresses: tuple[OsText, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """Say in `Tried` which of these are reached from here."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class NetAddress:
    """An address of a host. `prefix`: how many bits of it name the network."""

    interface: str
    address: str
    prefix: Annotated[int, Between(0, 128)]


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of trying one address. `refusal`: why it was not reached; empty if it was."""

    host: str
    address: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Tried:
    """The answer to `Try`."""

    results: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """An order: the controller lives, and wants to hear the same."""


@dataclass(frozen=True, slots=True)
class Pong:
    """A frame: the agent lives."""
