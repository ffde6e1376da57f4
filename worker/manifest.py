"""The words in which a working directory travels to a host; a part of `contract`."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import astuple

from .codec import ContractError, OsText, Size
from .records import dataclass


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of the working directory. `path`: relative, with ``/``. `digest`: SHA-256 of its content, in hex."""

    path: OsText
    digest: OsText
    size: Size
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """An order: have this directory, under a name made from its content. The agent answers with `CodeWanted`; `Hello` comes after."""

    digest: OsText
    files: tuple[CodeFile, ...]


@dataclass(frozen=True, slots=True)
class CodePart:
    """An order: a piece of the file with this digest, in order; the bytes follow the order's JSON. `last`: it is complete."""

    digest: OsText
    last: bool


@dataclass(frozen=True, slots=True)
class CodeWanted:
    """A frame: the contents that this host has not kept from another time. `trouble`: why it can keep none at all."""

    digests: tuple[str, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LikeHere:
    """A file that a shared working directory is known by, as it is where orch runs.

    `path`: relative with ``/``, or absolute if it lies outside. `digest`: SHA-256 of its content in hex; empty: its size has to do.
    A file with the same `inode`, `mtime_ns` and size is the same one on a shared disk, and need not be read.
    `must`: a difference ends the start; otherwise it is only told.
    """

    path: str
    size: int
    digest: str
    inode: int
    mtime_ns: int
    must: bool


@dataclass(frozen=True, slots=True)
class Likeness:
    """What a working directory must be like. `rest`: which files were left out for their number, in a sentence."""

    files: tuple[LikeHere, ...] = ()
    rest: str = ""

    def pack(self) -> str:
        """As a text, made once for all hosts: 5,000 dataclasses through `codec` would cost each of them 0.1 s here."""
        rows = [self.rest, *(astuple(file) for file in self.files)]
        return base64.b64encode(zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)).decode()

    @classmethod
    def unpack(cls, text: str) -> Likeness:
        """Raises `ContractError` for what `pack` has not made."""
        try:
            rest, *rows = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
            return cls(tuple(_like_here(row) for row in rows), rest)
        except (TypeError, ValueError, RecursionError, zlib.error) as error:
            raise ContractError(f"not a packed likeness: {error}") from None


def _like_here(row: Sequence[object]) -> LikeHere:
    if tuple(map(type, row)) != (str, int, str, int, int, bool):
        raise ValueError(f"not a file: {row!r:.80}")
    return LikeHere(*row)  # type: ignore[arg-type]
