"""A snapshot of a training in memory, which survives the death of the task that has written it. Standard library only.

The agent of a host makes two files in memory for each task, and keeps them; the task writes into the one and the other by turns. So a task
that is killed while it writes leaves the snapshot before it whole. No snapshot is mapped into the task's memory: a program that writes
where it should not, as before a segmentation fault, reaches none.

    at 0       the header: sequence number, the lengths of what follows, and a SHA-256 of these and of the note; written last
    at 128     one byte, of the agent: whether it still writes what the attempt before has left
    at 4096    in the first file: the last finished step; this page is mapped, because a step has no time for a call of the kernel
    at 8192    the note, as two lines of JSON: what changes with each snapshot, and what the tensors are
    after it   the bytes of the tensors

The bytes of the tensors have no checksum here: it would cost as much as the copy. The header is written when all bytes are there, and a
process that dies cannot undo a write. The agent makes the checksums when it writes a save (`snapshot_files`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

from ..values.fast_dataclass import dataclass

VARIABLE = "ORCH_SNAPSHOTS"
"""The environment variable with the paths of the files of a task, a colon between them."""
FILES = 2
_HEADER = struct.Struct("<8sQQQ32s")
_MAGIC = b"orchsnap"
_BUSY_AT, _REACHED_AT, _NOTE_AT = 128, 4096, 8192
_STEP = struct.Struct("<Q")
LONGEST_NOTE = 1 << 28
"""The longest note that is read, in bytes: some hundred bytes for each tensor are usual."""
_PIECE, _MOST_BUFFERS = 1 << 30, 512
"""One call of the kernel takes at most 2 GiB, and 1024 buffers."""


class Memory:
    """The two files of a task, as the task sees them."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises OSError, also if another process has them."""
        self._fds: list[int] = []
        self._reached: mmap.mmap | None = None
        try:
            for path in paths:
                self._fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            fcntl.flock(self._fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._fds[0], bytes(_NOTE_AT - _REACHED_AT), _REACHED_AT)  # a page that cannot be had is an error here, and no signal
            self._reached = mmap.mmap(self._fds[0], _NOTE_AT - _REACHED_AT, offset=_REACHED_AT)
        except OSError:
            self.close()
            raise
        self._sequence = max((found.sequence for fd in self._fds if (found := _read_header(fd)) is not None), default=0)

    def write(self, note: bytes, data: Sequence[Any]) -> None:
        """Write a snapshot in place of the older one. `data`: buffers of bytes. Raises OSError: then the newer one is still whole."""
        fd = self._fds[(self._sequence + 1) % len(self._fds)]
        os.pwrite(fd, bytes(_HEADER.size), 0)
        size = _write_all(fd, [note, *data], _NOTE_AT) - len(note)
        self._sequence += 1
        os.pwrite(fd, _pack(self._sequence, note, size), 0)

    def reach(self, step: int) -> None:
        """Note the last finished step."""
        assert self._reached is not None
        _STEP.pack_into(self._reached, 0, step)

    def clear(self) -> None:
        """Forget all snapshots, give the memory back, and close the files."""
        for fd in self._fds:
            os.ftruncate(fd, 0)
        self.close()

    def close(self) -> None:
        if self._reached is not None:
            self._reached.close()
        while self._fds:
            os.close(self._fds.pop())


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    path: str
    sequence: int
    note: dict[str, Any]
    tensors: dict[str, list[Any]]
    """By name: the type, the shape, and whether the worker has the tensor for itself. Their bytes follow one another in this order."""
    at: int
    """Where the bytes of the tensors begin."""

    def view(self) -> memoryview:
        """The bytes of the tensors."""
        with open(self.path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[self.at :]


def is_begun(path: str) -> bool:
    """True if a file may have a snapshot. This reads eight bytes: the program may have written anything there."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return os.pread(file.fileno(), len(_MAGIC), 0) == _MAGIC
    return False


def read(paths: Sequence[str]) -> list[StateSnapshot]:
    """The whole snapshots of a task, the newest first."""
    found = []
    for path in paths:
        # The program may have written anything there.
        with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
            header = _read_header(file.fileno())
            if header is not None:
                note, tensors = (json.loads(line) for line in header.note.split(b"\n"))
                found.append(StateSnapshot(path, header.sequence, note, tensors, _NOTE_AT + len(header.note)))
    return sorted(found, key=lambda each: -each.sequence)


def reached(path: str) -> int:
    """The last finished step that a task has noted; 0: none. `path`: of the first file of the task."""
    with contextlib.suppress(OSError, struct.error), open(path, "rb") as file:
        return int(_STEP.unpack(os.pread(file.fileno(), _STEP.size, _REACHED_AT))[0])
    return 0


def set_busy(fd: int, *, busy: bool) -> None:
    """Note whether the agent still writes what the attempt before has left. `fd`: of the first file of a task."""
    os.pwrite(fd, bytes([busy]), _BUSY_AT)


def is_busy(path: str) -> bool:
    """True if the agent still writes. `path`: of the first file of a task."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return os.pread(file.fileno(), 1, _BUSY_AT) == b"\1"
    return False


@dataclass(frozen=True, slots=True)
class _Header:
    sequence: int
    note: bytes


def _pack(sequence: int, note: bytes, size: int) -> bytes:
    lengths = struct.pack("<QQQ", sequence, len(note), size)
    return _HEADER.pack(_MAGIC, sequence, len(note), size, hashlib.sha256(lengths + note).digest())


def _read_header(fd: int) -> _Header | None:
    """None: there is no whole snapshot."""
    found = os.pread(fd, _HEADER.size, 0)
    if len(found) < _HEADER.size or not found.startswith(_MAGIC):
        return None
    _, sequence, length, size, _ = _HEADER.unpack(found)
    if length > LONGEST_NOTE or os.fstat(fd).st_size < _NOTE_AT + length + size:
        return None
    note = os.pread(fd, length, _NOTE_AT)
    if _pack(sequence, note, size) != found:
        return None
    return _Header(sequence, note)


def _write_all(fd: int, buffers: Sequence[Any], at: int) -> int:
    """Write buffers one after the other; returns the number of their bytes."""
    begun, left = at, [memoryview(each).cast("B") for each in buffers if memoryview(each).nbytes]
    while left:
        group, size = [], 0
        for each in left[:_MOST_BUFFERS]:
            group.append(each[: _PIECE - size])
            size += len(group[-1])
            if size >= _PIECE:
                break
        written = os.pwritev(fd, group, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
    return at - begun
