"""The words in which a working directory travels to a host; a part of `contract`."""

from __future__ import annotations

from ..fast_dataclass import dataclass
from .codec import OsText, Size


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
class WorkdirState:
    """What a working directory is like on one machine."""

    program: OsText = ""
    """The program's file: relative to the directory, or absolute if it lies outside; empty: the program has no file there."""
    digest: str = ""
    """SHA-256 of that file, in hex; empty: there is none."""
    inode: int = 0
    mtime_ns: int = 0
    """Of the program's file, or of the directory. Two machines that see the same of both have one disk."""
    commit: str = ""
    """What ``git rev-parse HEAD`` prints; empty: git does not know the directory."""
    has_changes: bool = False
    """Files that git tracks differ from the commit."""
