"""Keeps the file of a stream of output within a limit: the beginning and the end stay, and the middle becomes a hole.

A hole takes no space on the disk, and nothing moves: the task goes on to write at the end of its file, and offsets that others have read
stay right. Its bytes read as NULs, which are left out where lines are shown. In front of the hole stands a line that says how much is gone.
This takes fallocate(2) with FALLOC_FL_PUNCH_HOLE: Linux, on most file systems.
"""

from __future__ import annotations

import os

_PUNCH = 0x1 | 0x2
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE."""
_LINE = 4096
"""How far a line end is looked for, so that lines stay whole. A longer line is cut in two."""
_NOTE = "[orch: {:,} bytes are left out here: log_limit]"


def is_due(limit: int, hole: tuple[int, int], size: int) -> bool:
    """True if more than `limit` of the first `size` bytes of a file with this hole are kept."""
    return size - (hole[1] - hole[0]) > limit


def cut(fd: int, limit: int, hole: tuple[int, int], size: int) -> tuple[int, int]:
    """Cut the middle out of the first `size` bytes of a file that is open for both. Returns the hole: its first byte, its end.

    `hole`: what the last call for this file returned, first (0, 0). A quarter of the limit is kept of the beginning, and half of the end,
    so each cut that `is_due` removes a quarter or more. Raises OSError if the file system cannot make holes.
    """
    found = os.fstat(fd)
    if found.st_size < size or found.st_nlink != 1:
        return hole  # the task has emptied its own output, or given the file another name
    first = hole[0] if hole[1] else _after_line(fd, limit // 4)
    end = _after_line(fd, size - limit // 2)
    note = _NOTE.format(end - first).encode()
    if end - first <= len(note) + 2 * _LINE:
        return hole
    _punch(fd, first, end - first)
    if first and os.pread(fd, 1, first - 1) != b"\n":
        note = b"\n" + note
    os.pwrite(fd, note, first)
    os.pwrite(fd, b"\n", end - 1)
    return first, end


def _after_line(fd: int, offset: int) -> int:
    """Return where the first line begins at `offset` or soon after it; `offset` itself if no line ends there."""
    return offset + os.pread(fd, _LINE, offset).find(b"\n") + 1


def _punch(fd: int, first: int, length: int) -> None:
    import ctypes  # most runs have no limit

    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        raise OSError("this system makes no holes in files")
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if fallocate(fd, _PUNCH, first, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
