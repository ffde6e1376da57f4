"""The files that a task writes, and how the agent learns that they have grown.

A task's stdout and stderr *are* files. So no task ever waits for a reader, and what a task has written is on disk whichever process
dies next. The kernel reports when files in a directory grow (inotify(7)); where it cannot, the agent reads their sizes now and then.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from ... import task_files
from ...directory import Directory
from ...fast_dataclass import dataclass
from ...protocol.task_id import STREAMS, file_of

_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_CHUNK = 256 * 1024
_REPORTS_CHUNK = 1024 * 1024
_INPUT = task_files.INPUT.encode()


@dataclass(slots=True)
class TaskOutput:
    """The files of one attempt of a task."""

    task: str
    attempt: int
    root: Directory
    log_dir: str
    """Where the files are, below `root`."""
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """How many bytes of each stream, or reports of its size, were sent to the controller."""
    reports_read: int = 0
    """Bytes of the file of reports that were read."""
    input_counts: dict[str, Any] = field(default_factory=dict)
    """The newest counts of the input."""
    program_report: dict[str, Any] = field(default_factory=dict)
    """The newest report of the program."""
    awaits_begin: bool = False
    """The program is Python, and TaskBegan was not sent yet."""
    was_shorter: bool = False
    """A file was found shorter than it had been: the task has opened /dev/stdout with O_TRUNC."""

    @property
    def directory(self) -> str:
        """Where the files are now: a user may move the run directory while the run goes on."""
        return os.path.join(self.root.path, self.log_dir)

    def path(self, stream: str) -> str:
        return os.path.join(self.directory, file_of(stream))

    def size(self, stream: str) -> int:
        """Bytes in the file now; never less than what was sent, so that offsets only grow."""
        try:
            size = os.stat(self.path(stream)).st_size
        except OSError:  # not there yet, or removed with the run directory; the task has not cut it short
            return self.sent[stream]
        self.was_shorter |= size < self.sent[stream]
        return max(size, self.sent[stream])

    def check_shorter(self) -> bool:
        """`was_shorter`, after reading the sizes once more."""
        for stream in STREAMS:
            self.size(stream)
        return self.was_shorter

    def read(self, stream: str, limit: int) -> tuple[int, bytes]:
        """The next bytes after what was sent, at most `limit`, and their offset."""
        offset = self.sent[stream]
        try:
            with open(self.path(stream), "rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(min(limit, _CHUNK)) or b""
        except OSError:
            data = b""
        self.sent[stream] = offset + len(data)
        return offset, data

    def begun_at(self) -> float | None:
        """When the program came to its first line, by CLOCK_MONOTONIC; None if it has not, or if this was returned before."""
        if not self.awaits_begin:
            return None
        try:
            with open(os.path.join(self.directory, task_files.BEGUN), "rb", buffering=0) as file:
                at = float(file.read())
        except (OSError, ValueError):
            return None  # not there yet, or not complete
        self.awaits_begin = False
        return at

    def last_report(self) -> dict[str, Any] | None:
        """The newest report of the program, together with the newest counts of its input; None if neither is new."""
        try:
            with open(os.path.join(self.directory, task_files.REPORTS), "rb", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                start = max(self.reports_read, end - _REPORTS_CHUNK)
                file.seek(start)
                data = file.read(end - start) or b""
        except OSError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        self.reports_read = start + len(whole)
        lines = whole.splitlines()[::-1]
        counts = _first_object(line for line in lines if _INPUT in line)
        report = _first_object(line for line in lines if _INPUT not in line)
        if not (counts or report):
            return None
        self.input_counts = counts or self.input_counts
        self.program_report = report or self.program_report
        return {**self.input_counts, **self.program_report, "at": max(_moment(counts), _moment(report)) or None}


def _first_object(lines: Iterable[bytes]) -> dict[str, Any]:
    """The first of these lines that holds a JSON object; empty if none does."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict):
                return values
    return {}


def _moment(values: dict[str, Any]) -> float:
    at = values.get("at")
    return at if isinstance(at, float) else 0.0


class LogWatcher:
    """Finds the tasks whose files have grown. If `is_blind`, the kernel does not report growth: call `changed` now and then."""

    def __init__(self) -> None:
        self._by_number: dict[int, TaskOutput] = {}
        self._outputs: dict[int, TaskOutput] = {}
        self._fd = _open_inotify()
        self.is_blind = self._fd < 0

    def fileno(self) -> int:
        return self._fd

    def add(self, output: TaskOutput) -> None:
        """Watch the files of a task. Their directory must exist."""
        self._outputs[id(output)] = output
        if not self.is_blind:
            number = _libc.inotify_add_watch(self._fd, os.fsencode(output.directory), _IN_MODIFY)
            self.is_blind = number < 0  # there are too many watches (fs.inotify.max_user_watches)
            self._by_number[number] = output

    def remove(self, output: TaskOutput) -> None:
        del self._outputs[id(output)]
        for number in [n for n, known in self._by_number.items() if known is output]:
            del self._by_number[number]
            _libc.inotify_rm_watch(self._fd, number)

    def changed(self) -> list[TaskOutput]:
        """The files that may have grown since the last call."""
        numbers = {number for number, mask in self._events() if not mask & _IN_Q_OVERFLOW}
        if self.is_blind or self._overflowed:
            return list(self._outputs.values())
        return [self._by_number[number] for number in numbers if number in self._by_number]

    def _events(self) -> Iterator[tuple[int, int]]:
        self._overflowed = False
        try:
            data = os.read(self._fd, _CHUNK)
        except OSError:
            return
        position = 0
        while position < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            self._overflowed |= bool(mask & _IN_Q_OVERFLOW)
            yield number, mask

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _open_inotify() -> int:
    if _libc is None:
        return -1
    # Fails when this user has too many instances (fs.inotify.max_user_instances, 128 by default); the watcher is blind then.
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return fd
