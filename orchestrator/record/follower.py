"""Reads a file of output as it grows, or from its last lines on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .run_files import open_file, size_of

BLOCK = 1 << 16
"""The bytes of one read. The allocator reuses blocks of this size; a larger block costs a page fault each time."""

MOST_BACK = 1 << 30
"""How many bytes are read backwards at most, to find the last lines."""


class Follower:
    """Reads one log file as it grows, from `offset` on, or from its last `tail` lines on.

    The file need not exist. If it was moved, `path` may be set to its new place. Each read opens the file: a run of 300 tasks has 600
    files, and a process often may open no more than 1024. Raises as `open_file` does, but for a file that does not exist.
    """

    def __init__(self, path: Path, *, offset: int = 0, tail: int | None = None) -> None:
        self.path = path
        self.offset = offset if tail is None else tail_offset(path, tail)
        """The offset of the next read, in bytes."""

    def read(self, limit: int = BLOCK) -> bytes:
        """The next bytes, at most `limit`, without holes; empty: none yet. Of a file that became shorter: what is added from then on."""
        data = b""
        with contextlib.suppress(FileNotFoundError), open_file(self.path) as file:
            self.offset = _next_data(file.fileno(), self.offset)
            file.seek(self.offset)
            data = file.read(limit)
        self.offset += len(data)
        return data

    @property
    def has_new(self) -> bool:
        """True if the size of the file differs from what was read."""
        return size_of(self.path) != self.offset

    def present_end(self) -> int:
        """The size of the file by now. Of a file that became shorter, the next read begins there."""
        end = size_of(self.path)
        self.offset = min(self.offset, end)
        return end

    def read_present(self) -> Iterator[bytes]:
        """The next bytes in blocks, up to the present end of the file: what comes meanwhile may have no end."""
        end = self.present_end()
        while self.offset < end and (data := self.read(min(BLOCK, end - self.offset))):
            yield data


def _next_data(fd: int, offset: int) -> int:
    """Return where data begin in a file at `offset` or later; the end of the file if none do."""
    found = os.fstat(fd)
    if offset >= found.st_size:
        return found.st_size
    if found.st_blocks * 512 < found.st_size:  # it may have a hole: a task has set the size of its own output, to a terabyte perhaps
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            return found.st_size if error.errno == errno.ENXIO else offset
    return offset


def tail_offset(path: Path, lines: int) -> int:
    """The offset of the last `lines` lines of a file, in bytes; 0 if the file has no more lines, or does not exist.

    A last line without a line end counts. In a file whose last lines have more than `MOST_BACK` bytes: that many bytes before its end.
    """
    end = 0
    with contextlib.suppress(FileNotFoundError), open_file(path) as file:
        size = end = file.seek(0, os.SEEK_END)
        while lines and end and size - end < MOST_BACK:  # back block by block: a log of progress bars may have gigabytes without a line end
            start = max(0, end - BLOCK)
            file.seek(start)
            block = file.read(end - start)
            if end == size:
                block = block.removesuffix(b"\n")
            found = block.count(b"\n")
            if found >= lines:
                return start + len(block.rsplit(b"\n", lines)[0]) + 1
            lines -= found
            end = start
    return end
