"""The files that a task writes, and how the agent learns that they have grown.

A task's stdout and stderr *are* files. So no task ever waits for a reader, and what a task has written is on disk whichever process
dies next. The kernel reports the files that have grown (inotify(7)), and the agent then looks at these. Where the kernel has no inotify
instance for this user, the agent looks at all files once a second.
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

from ..machine import clock
from ..machine.directory import Directory
from ..protocol import messages, task_files
from ..protocol.task_id import STREAMS, file_of
from ..values.codec import from_json
from ..values.fast_dataclass import dataclass

_CHUNK = 256 * 1024
_EVENTS = 16 * 1024
"""Bytes that are read of the kernel's reports of growth at a time."""
_LONGEST_TIME = 100
"""Bytes that are read of the file `begun`."""
_MOST_REPORTS = 1 << 20
"""Bytes that are read of the newest reports at a time: sixteen of the longest, and hundreds of the usual ones."""
_NOT_FINITE = tuple(f': "{word}"'.encode() for word in task_files.NOT_FINITE)
_OWN_KEYS = tuple(f'"{key}":'.encode() for key in task_files.OWN_KEYS)
_IN_MODIFY, _IN_Q_OVERFLOW = 0x2, 0x4000
_EVENT = struct.Struct("iIII")
"""`struct inotify_event`: watch, mask, cookie, and the length of the name that follows."""


@dataclass(slots=True, eq=False)
class TaskOutput:
    task: str
    attempt: int
    root: Directory
    log_dir: str
    """Where the files are, below `root`."""
    awaits_begin: bool = False
    """The program is Python, and TaskBegan was not sent yet."""
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """How many bytes of each stream, or reports of its size, were sent to the controller."""
    reports_read: int = 0
    """Bytes of the file of reports that were read."""
    next_report_at: float = 0.0
    """Reports are not read before this time of the monotonic clock."""
    saving_read: int = 0
    """Bytes of the file `saving` that were read."""
    own_values: dict[str, Any] = field(default_factory=dict)
    """The newest values of orch's own lines among the reports: the counts of the input, and whether the program serves."""
    program_report: dict[str, Any] = field(default_factory=dict)
    """The newest report of the program."""
    was_shorter: bool = False
    """A file was found shorter than it had been: the task has opened /dev/stdout with O_TRUNC."""

    @property
    def directory(self) -> str:
        """Return where the files are now: a user may move the run directory while the run goes on."""
        return os.path.join(self.root.path, self.log_dir)

    def path(self, stream: str) -> str:
        return os.path.join(self.directory, file_of(stream))

    def size(self, stream: str) -> int:
        """Bytes in the file now; never less than what was sent, so that offsets only grow."""
        size = task_files.size(self.path(stream))
        if size < 0:  # not there yet, or removed with the run directory; the task has not cut it short
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
        data = task_files.read(self.path(stream), offset, most=min(limit, _CHUNK))
        self.sent[stream] = offset + len(data)
        return offset, data

    def read_begin(self) -> messages.TaskBegan | None:
        """When the program came to its first line; None if it has not, or if this was returned before."""
        if not self.awaits_begin:
            return None
        try:
            at = float(task_files.read(os.path.join(self.directory, task_files.BEGUN), most=_LONGEST_TIME))
        except ValueError:
            return None  # not there yet, or not complete
        self.awaits_begin = False
        # The task wrote the time, and may have a clock of its own (time_namespaces(7)); a time in the future is not believed.
        return messages.TaskBegan(self.task, self.attempt, min(clock.from_monotonic(at), clock.now()))

    @property
    def saves(self) -> bool:
        """True if the training can save on order."""
        return task_files.size(os.path.join(self.directory, task_files.SAVING)) > 0

    def read_saving(self) -> Iterator[messages.TaskSaves]:
        """Return what the training has said of saves on order since the last call: the newest of each state."""
        path = os.path.join(self.directory, task_files.SAVING)
        if task_files.size(path) <= self.saving_read:
            return
        data = task_files.read(path, self.saving_read, most=_CHUNK)
        whole = data[: data.rfind(b"\n") + 1]
        self.saving_read += len(whole)
        newest: dict[str, str] = {}
        for line in whole.decode("ascii", "replace").splitlines():
            state, _, step = line.partition(" ")
            newest.pop(state, None)  # the order is that of the newest
            newest[state] = step
        for state, step in newest.items():
            with contextlib.suppress(ValueError):  # any program may write into the file
                fields = {"task": self.task, "attempt": self.attempt, "state": state, "step": int(step), "at": clock.now()}
                yield from_json(messages.TaskSaves, fields)

    def order_save(self, word: str, step: int = 0) -> None:
        """Write an order for the training; none if it cannot save on order, or the disk is full."""
        if self.saves:
            with contextlib.suppress(OSError):
                fd = task_files.open_regular(os.path.join(self.directory, task_files.SAVE_ORDER), os.O_WRONLY | os.O_CREAT)
                with open(fd, "wb", buffering=0) as file:
                    file.write(task_files.save_order(word, step))

    def begins_to_report(self) -> bool:
        """True if `last_reports` would have the first report of the program itself."""
        if self.program_report:
            return False
        data = task_files.read(os.path.join(self.directory, task_files.REPORTS), self.reports_read, most=_MOST_REPORTS)
        return any(line.endswith(b"\n") and not any(key in line for key in _OWN_KEYS) for line in data.splitlines(keepends=True))

    def last_reports(self) -> list[dict[str, Any]]:
        """The newest report of the program, together with the newest values of orch's own lines; none if neither is new.

        Before it comes the first new report with a value that is NaN or infinite, if there is one: those after it would hide it.
        """
        path = os.path.join(self.directory, task_files.REPORTS)
        size = task_files.size(path)
        start = max(self.reports_read, size - _MOST_REPORTS)
        data = task_files.read(path, start, most=size - start) if size > start else b""
        whole = data[: data.rfind(b"\n") + 1]
        self.reports_read = start + len(whole)
        own: list[bytes] = []
        reports = whole.splitlines()
        if any(key in whole for key in _OWN_KEYS):  # most reports have none
            own = [line for line in reports if any(key in line for key in _OWN_KEYS)]
            reports = [line for line in reports if not any(key in line for key in _OWN_KEYS)]
        found = [values for line in own if (values := _parse(line)) is not None]
        for values in found:
            self.own_values |= values
        # A quick loop reports twenty times a second: only its newest report is read, and the first that no other may hide.
        odd, newest = _first(line for line in reports if any(word in line for word in _NOT_FINITE)), _first(reversed(reports))
        told = [values for values in (odd if odd != newest else None, newest) if values is not None]
        made = []
        for values in told or [self.program_report] * bool(found):
            self.program_report = values
            at = max((at for each in (values, *found) if isinstance(at := each.get("at"), float)), default=None)
            made.append({**self.own_values, **values, "at": at})
        return made


def _first(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """The object in the first line that has one."""
    return next((values for line in lines if (values := _parse(line)) is not None), None)


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line of the reports; None if it has none: any program may write into the file."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Inotify:
    """Readable when a file in one of the directories has grown."""

    def __init__(self) -> None:
        # Fails when this user has too many instances (fs.inotify.max_user_instances, 128 by default).
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if _libc is not None else -1

    def fileno(self) -> int:
        """Negative: the kernel reports no growth."""
        return self._fd

    def add(self, directory: str) -> int:
        """Watch a directory, which must exist. Returns the number of the watch; negative: there is none."""
        return _libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MODIFY) if _libc is not None else -1

    def remove(self, number: int) -> None:
        if number >= 0:
            _libc.inotify_rm_watch(self._fd, number)

    def read(self) -> tuple[dict[int, set[str]], bool]:
        """The names of the files that have grown since the last call, by the watches of their directories; and whether the kernel has lost
        some of them, because there were too many."""
        data, start, found, lost = b"", 0, dict[int, set[bytes]](), False
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _EVENTS)
        while start < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size
            lost |= bool(mask & _IN_Q_OVERFLOW)
            found.setdefault(watch, set()).add(data[start : start + length])
            start += length
        return {watch: {os.fsdecode(name.rstrip(b"\0")) for name in names} for watch, names in found.items()}, lost
