"""The record of a run whose directory this machine does not see: a copy that grows, from the pieces that `mirror_source` sends.

Whatever another machine sends, a piece is written into the directory of the run, into a file as a run has it, and no larger than a run
makes it. The mirror keeps no list: what it has is seen from its files, whose times are those of their originals where that counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from worker.values.fast_dataclass import dataclass

from ..errors import OrchError
from . import mirror_source
from .mirror_source import FETCH_BYTES, GONE, MARK, PIECE_BYTES, WHOLE_BYTES, grows, is_mirrored
from .run_files import open_own, write_all, write_whole

SOURCE = Path(mirror_source.__file__)
"""The program that runs on the controller's machine."""
LINE_BYTES = 4096
"""The longest line in front of a piece."""
NOISE_BYTES = 1 << 16
"""How much may come before `MARK`: a shell may greet."""
_LAST_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file of a run; see `mirror_source`."""

    path: str
    stamp: int
    data: bytes = b""


def have(run: Path) -> bytes:
    """Return what the mirror in this directory has, for the source."""
    found = {}
    for name in mirror_source.walk(str(run)):
        with contextlib.suppress(OSError):
            found[name] = mirror_source.state(str(run / name), name)
    return json.dumps(found).encode()


def store(run: Path, answer: Iterable[bytes], limit: float = math.inf) -> bool:
    """Write the pieces of an answer, until `limit` of `time.monotonic`. Returns whether there is more. Raises `OrchError`."""
    pieces = Pieces()
    try:
        for data in answer:
            for piece in pieces.feed(data):
                _write(run, piece)
                if time.monotonic() > limit:
                    return True
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise OrchError(f"the mirror of {run.name} cannot be written: {error}") from None
    if not pieces.is_complete:
        raise OrchError(f"the connection to the controller of {run.name} has ended early")
    return pieces.has_more


class Pieces:
    """Decodes an answer. Raises `OrchError` for bytes that no source sends."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._has_begun = False
        self._head: tuple[str, int, int] | None = None
        """Path, stamp and size of the piece whose bytes come next."""
        self._received = 0
        self.is_complete = self.has_more = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with these bytes."""
        self._rest += data
        self._received += len(data)
        if self._received > FETCH_BYTES + 2 * WHOLE_BYTES:
            raise _Wrong("too many bytes")
        if not self._has_begun:
            found = self._rest.find(MARK)
            if found < 0:
                if len(self._rest) > NOISE_BYTES:
                    raise _Wrong("there is no mark in front")
                return
            del self._rest[: found + len(MARK)]
            self._has_begun = True
        while not self.is_complete and (piece := self._take()) is not None:
            if piece.path:
                yield piece
            else:
                self.is_complete, self.has_more = True, piece.stamp == 1

    def _take(self) -> Piece | None:
        if self._head is None:
            end = self._rest.find(b"\n", 0, LINE_BYTES)
            if end < 0:
                if len(self._rest) >= LINE_BYTES:
                    raise _Wrong("a line without an end")
                return None
            self._head = _parse(bytes(self._rest[:end]))
            del self._rest[: end + 1]
        path, stamp, size = self._head
        if len(self._rest) < size:
            return None
        data = bytes(self._rest[:size])
        del self._rest[:size]
        self._head = None
        return Piece(path, stamp, data)


def _parse(line: bytes) -> tuple[str, int, int]:
    """Path, stamp and size of a piece."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    match found:
        case [str(path), int(stamp), int(size)] if type(stamp) is type(size) is int and GONE <= stamp <= _LAST_NS:
            most = 0 if not path or stamp == GONE else PIECE_BYTES if grows(path) else WHOLE_BYTES
            if (not path or is_mirrored(path)) and 0 <= size <= most:
                return path, stamp, size
    raise _Wrong(repr(line[:80]))


def _write(run: Path, piece: Piece) -> None:
    path = run / piece.path
    if piece.stamp == GONE:
        if not grows(piece.path):
            path.unlink(missing_ok=True)
        return
    for parent in reversed(path.relative_to(run).parents[:-1]):
        (run / parent).mkdir(mode=0o700, exist_ok=True)
    if not grows(piece.path):
        write_whole(path, piece.data)
        os.utime(path, ns=(piece.stamp, piece.stamp))
        return
    fd = open_own(path, os.O_WRONLY)
    try:
        if piece.stamp > os.fstat(fd).st_size:
            raise _Wrong(f"{piece.path}: bytes are missing")
        os.ftruncate(fd, piece.stamp)
        os.lseek(fd, piece.stamp, os.SEEK_SET)
        write_all(fd, piece.data)
    finally:
        os.close(fd)


class _Wrong(OrchError):
    def __init__(self, what: str) -> None:
        super().__init__(f"what came from the controller's machine is no answer for a mirror: {what}")
