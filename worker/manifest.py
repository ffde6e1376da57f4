"""The words in which a working directory travels to a host; a part of `contract`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of the working directory. `path`: relative, with ``/``. `digest`: SHA-256 of its content, in hex."""

    path: str
    digest: str
    size: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """An order: have this directory, under a name made from its content. The agent answers with `CodeWanted`; `Hello` comes after."""

    digest: str
    files: tuple[CodeFile, ...]


@dataclass(frozen=True, slots=True)
class CodePart:
    """An order: a piece of the file with this digest, in order; the bytes follow the order's JSON. `last`: it is complete."""

    digest: str
    last: bool


@dataclass(frozen=True, slots=True)
class CodeWanted:
    """A frame: the contents that this host has not kept from another time. `trouble`: why it can keep none at all."""

    digests: tuple[str, ...]
    trouble: str = ""
