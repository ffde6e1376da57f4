"""The output of several tasks in the order of time, as far as the file `marks` of the run knows the times.

The files of output hold no times. A mark says how long a file was at which time, about once a second (`log_index`), so lines of two tasks
that are less than a second apart may stand in either order. Lines of one task keep their order. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from worker.values.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogStretch:
    """A part of one file of output that is to be shown."""

    task: str
    attempt: int
    stream: str
    start: int
    """In bytes, as `end` is."""
    end: int
    marks: Sequence[tuple[float, int]] = ()
    """When the file had which size: seconds since the epoch, and bytes, in the order in which they were written."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of one file that were written at about the same time. Lines may begin and end in other pieces of the file."""

    task: str
    attempt: int
    stream: str
    end: int
    """The piece begins where the piece before of the same file ends."""
    at: float | None
    """Seconds since the epoch; None: no mark has these bytes, as of a file that has just grown."""


def in_order(stretches: Iterable[LogStretch]) -> Iterator[LogPiece]:
    """The pieces of all stretches by time; at the same time in the order of `stretches`.

    `stretches`: grouped by task, the attempts of a task in order. The pieces of an attempt come after all pieces of the attempt before.
    Pieces without a time come last within their attempt: of the newest attempts, after all others.
    """
    tasks = [_of_task([*own]) for _, own in groupby(stretches, key=lambda stretch: stretch.task)]
    return (piece for _, piece in heapq.merge(*tasks, key=lambda timed: timed[0]))


def _of_task(stretches: Sequence[LogStretch]) -> list[tuple[float, LogPiece]]:
    """The pieces of one task, each with the time by which it is sorted. These times never fall."""
    found: list[tuple[float, LogPiece]] = []
    newest = max(stretch.attempt for stretch in stretches)
    for attempt, own in groupby(stretches, key=lambda stretch: stretch.attempt):
        pieces = [piece for stretch in own for piece in _of_stretch(stretch)]
        for piece in sorted(pieces, key=lambda piece: math.inf if piece.at is None else piece.at):
            before = found[-1][0] if found else -math.inf
            late = math.inf if attempt == newest else before
            found.append((max(before, late if piece.at is None else piece.at), piece))
    return found


def _of_stretch(stretch: LogStretch) -> Iterator[LogPiece]:
    start = stretch.start
    for at, size in stretch.marks:
        if size > start and start < stretch.end:
            start = min(size, stretch.end)
            yield LogPiece(stretch.task, stretch.attempt, stretch.stream, start, at)
    if start < stretch.end:
        yield LogPiece(stretch.task, stretch.attempt, stretch.stream, stretch.end, None)
