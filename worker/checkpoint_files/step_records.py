"""What each worker has for itself at the end of a step, as its training writes it within the step. Standard library only.

TensorFlow writes the records itself, in the graph of the step, into a file in memory (worker/task/snapshots/records.py). The file begins
with a line of JSON, which says where the numbers of the steps and the values are. Each of the last steps has a row: a worker that is killed
while it writes leaves the records before, and of two survivors one may be a step ahead of the other.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Sequence
from typing import BinaryIO

from ..values.fast_dataclass import dataclass
from . import tensor_file
from .tensor_file import Tensor

ROWS = 4
"""A step writes its values, and then its number, in place of those of the fourth step before it: so the oldest record may be half a new
one, and is none."""
HEAD = 1 << 20
"""The bytes before the rows, of which the head takes as many as it needs."""
MOST_BYTES = 1 << 20
"""The most bytes that a record may have: it is a part of each step."""
_NUMBERS = struct.Struct(f"<{ROWS}q")
NONE = struct.pack("<q", -1)
"""The number of a row without a record. A number is that of the steps before the one of the record."""

Group = tuple[int, list[tuple[str, str, list[int]]]]
"""Where the first row is, and the names, types (`tensor_file.SIZES`) and shapes of its values, which follow one another. A row follows the
one before."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a worker had for itself at the end of a step. `step`: its number."""

    step: int
    tensors: dict[str, Tensor]


def head(numbers: int, groups: Sequence[Group]) -> bytes:
    """The line at the beginning. `numbers`: where the numbers of the steps are. Raises ValueError if there are too many names."""
    made = json.dumps([numbers, groups]).encode() + b"\n"
    if len(made) > HEAD:
        raise ValueError("a worker has too many variables for itself")
    return made


def read(path: str, step: int | None = None) -> list[StepRecord]:
    """The records in a file. `step`: only that of this step."""
    # The program may have written anything there.
    damage = (ValueError, LookupError, TypeError, RecursionError, OverflowError)
    with contextlib.suppress(OSError, *damage), open(path, "rb") as file:
        numbers_at, groups = json.loads(file.readline(HEAD))
        numbers = _NUMBERS.unpack(_bytes(file, numbers_at, _NUMBERS.size))
        newest = [(row, number) for row, number in enumerate(numbers) if number % ROWS == row and max(-1, max(numbers) - ROWS + 1) < number]
        return [StepRecord(number + 1, _tensors(file, groups, row)) for row, number in newest if step in (None, number + 1)]
    return []


def _tensors(file: BinaryIO, groups: Sequence[Group], row: int) -> dict[str, Tensor]:
    found = {}
    for at, told in groups:
        sizes = [tensor_file.size_of(code, shape) for _, code, shape in told]
        data, begin = _bytes(file, at + row * sum(sizes), sum(sizes)), 0
        for (name, code, shape), size in zip(told, sizes, strict=True):
            found[name] = Tensor(code, tuple(shape), data[begin : begin + size])
            begin += size
    return found


def _bytes(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(min(size, MOST_BYTES))
    if len(data) != size:  # also for a negative one
        raise ValueError(size)
    return data
