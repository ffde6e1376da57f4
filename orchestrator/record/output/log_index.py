"""When a run's output was written: how far its streams had grown by what time, noted now and then.

The files of a task hold its bytes and nothing else, so ``marks`` in the run's directory holds the times, a line each: the time (seconds
since the epoch, by the controller's clock), then ``TASK.ATTEMPT.STREAM=BYTES`` for each stream that has grown since the line before.
There is a line a second while anything grows, or fewer, so that there are not more than `MOST_A_SECOND` sizes a second.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from pathlib import Path

from ..storage.run_directory import RunDir
from ..storage.run_files import open_file, private_opener
from .log_view import BLOCK

EVERY_S = 1.0
"""How much older than asked for a line may be that `KeptMarks.offset_since` lets through, in a run of up to `MOST_A_SECOND` streams."""
MOST_A_SECOND = 20


class Marks:
    """Written by the controller. A mark that finds no room on the disk is missing, or torn, and no more."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._grown: dict[str, int] = {}
        self._every_s = EVERY_S
        self._is_torn = False

    def grew(self, task: str, attempt: int, stream: str, size: int) -> float | None:
        """A stream has grown. Returns in how many seconds `write` is to be called; None: that is known already."""
        is_first = not self._grown
        self._grown[_key(task, attempt, stream)] = size
        return self._every_s if is_first else None

    def write(self, at: float) -> None:
        """Keep what has grown since the last call. `at`: now."""
        if self._grown:
            self._append(" ".join([repr(at), *(f"{key}={size}" for key, size in self._grown.items())]) + "\n")
            self._every_s = max(EVERY_S, len(self._grown) / MOST_A_SECOND)
            self._grown.clear()

    def _append(self, text: str) -> None:
        # What the disk took of a line before it was full has no end.
        text, self._is_torn = "\n" * self._is_torn + text, True
        with contextlib.suppress(OSError):
            with open(_path(self._run), "a", encoding="ascii", opener=private_opener) as file:
                file.write(text)
            self._is_torn = False


class KeptMarks:
    """The marks of a run as they are now. Without any, all output counts as old as the run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._marks: dict[str, tuple[list[float], list[int]]] = {}
        with contextlib.suppress(FileNotFoundError), open_file(_path(run)) as file:
            for line in file.read().decode("ascii", "replace").splitlines(keepends=True):
                if line.endswith("\n"):  # if not, it is being written
                    with contextlib.suppress(ValueError):  # torn: the disk was full
                        self._take(line)

    def _take(self, line: str) -> None:
        at, *sizes = line.split()
        for text in sizes:
            key, _, size = text.partition("=")
            moment, reached = float(at), int(size)
            times, known = self._marks.setdefault(key, ([], []))
            times.append(moment)
            known.append(reached)

    def offset_since(self, task: str, attempt: int, stream: str, at: float) -> int:
        """Where the line begins at which to read on, in order to miss nothing that was written at the time `at` or later."""
        times, sizes = self._marks.get(_key(task, attempt, stream), ([], []))
        before = bisect_left(times, at)
        return _line_start(self._run.log_path(task, attempt, stream), sizes[before - 1]) if before else 0

    def last_time(self, task: str, attempt: int, stream: str) -> float:
        """By when a stream had grown for the last time; 0 if nobody has heard of it."""
        times, _ = self._marks.get(_key(task, attempt, stream), ([], []))
        return times[-1] if times else 0.0


def _line_start(path: Path, offset: int) -> int:
    """The beginning of the line that the byte at `offset` belongs to, if it is not too far before it."""
    start = max(0, offset - BLOCK)
    try:
        with open_file(path) as file:
            file.seek(start)
            before = file.read(offset - start) or b""
    except OSError:
        return offset
    end = before.rfind(b"\n") + 1
    return start + end if end or not start else offset


def _key(task: str, attempt: int, stream: str) -> str:
    return f"{task}.{attempt}.{stream}"


def _path(run: RunDir) -> Path:
    return run.path / "marks"
