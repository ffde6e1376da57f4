"""The file `marks` of a run: how long each output stream was at which time.

The output files hold no times. So a line of ``marks`` has a time (seconds since the epoch, by the controller's clock), then
``TASK.ATTEMPT.STREAM=BYTES`` for each stream that has grown since the line before, for example
``1795231330.19 worker-0.1.stdout=4096``. A line is written at most once a second, and at most `MOST_A_SECOND` sizes a second.
An empty line stands before each of them: if the disk was full, the line before has no end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .follower import BLOCK
from .run_directory import RunDir
from .run_files import MOST_BYTES, open_file, private_opener

EVERY_S = 1.0
"""Seconds between two lines, with up to `MOST_A_SECOND` streams: `KeptMarks.offset` may begin so much too early."""
MOST_A_SECOND = 20


class Marks:
    """The controller writes these marks. If the disk is full, a mark is missing or incomplete, without further effect."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._grown: dict[str, int] = {}
        self._every_s = EVERY_S

    def grew(self, task: str, attempt: int, stream: str, size: int) -> float | None:
        """A stream has grown. Returns the seconds until `write` must be called; None if a call is due already."""
        is_first = not self._grown
        self._grown[_key(task, attempt, stream)] = size
        return self._every_s if is_first else None

    def write(self, at: float) -> None:
        """Writes the sizes of the streams that have grown since the last call. `at`: the present time."""
        if self._grown:
            line = " ".join([repr(at), *(f"{key}={size}" for key, size in self._grown.items())])
            with contextlib.suppress(OSError), open(_path(self._run), "a", encoding="ascii", opener=private_opener) as file:
                file.write(f"\n{line}\n")
            self._every_s = max(EVERY_S, len(self._grown) / MOST_A_SECOND)
            self._grown.clear()


class KeptMarks:
    """The marks of a run, read once, for a reader who begins at the time `at`. Without marks, all output counts as old as the run."""

    def __init__(self, run: RunDir, at: float = 0.0) -> None:
        self._run, self.at = run, at
        self._marks: dict[str, list[tuple[float, int]]] = {}
        kept = b""
        with contextlib.suppress(FileNotFoundError), open_file(_path(run)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))  # of a run of days, the newest
            kept = file.read(MOST_BYTES)
        for line in kept.decode("ascii", "replace").splitlines():
            with contextlib.suppress(ValueError):  # an incomplete line: the disk was full, or the line is still being written
                time, *sizes = line.split()
                for text in sizes:
                    key, _, size = text.partition("=")
                    self._marks.setdefault(key, []).append((float(time), int(size)))

    def offset(self, task: str, attempt: int, stream: str) -> int:
        """The offset of a line from which on a reader gets all output that was written at the time `at` or later."""
        marks = self.of(task, attempt, stream)
        offset = next((size for time, size in reversed(marks) if time < self.at), 0)
        return _line_start(self._run.log_path(task, attempt, stream), offset)

    def of(self, task: str, attempt: int, stream: str) -> Sequence[tuple[float, int]]:
        """The marks of a stream: when its file had which size."""
        return self._marks.get(_key(task, attempt, stream), ())

    def split(self, task: str, attempt: int, stream: str, data: bytes, end: int) -> Iterator[tuple[bytes, float | None]]:
        """The parts of `data`, which ends at the offset `end`, each with the time of the mark that has it; None: no mark has it yet."""
        start = end - len(data)
        for time, size in self.of(task, attempt, stream):
            if size > start and data:
                part, data = data[: size - start], data[size - start :]
                yield part, time
                start = size
        if data:
            yield data, None

    def last_time(self, task: str, attempt: int, stream: str) -> float:
        """The time of a stream's last mark; 0 if there is none."""
        marks = self.of(task, attempt, stream)
        return marks[-1][0] if marks else 0.0


def _line_start(path: Path, offset: int) -> int:
    """The beginning of the line with the byte at `offset`, or `offset` if the line is longer than `BLOCK`."""
    start = max(0, offset - BLOCK)
    try:
        with open_file(path) as file:
            file.seek(start)
            before = file.read(offset - start)
    except OSError:
        return offset
    end = before.rfind(b"\n") + 1
    return start + end if end or not start else offset


def _key(task: str, attempt: int, stream: str) -> str:
    return f"{task}.{attempt}.{stream}"


def _path(run: RunDir) -> Path:
    return run.path / "marks"
