"""Writes what this worker has for itself at the end of each step, in the graph of the step (`checkpoint_files.step_records`).

Each operation of a graph costs some microseconds of each step, so all values of four bytes are put together.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from ...checkpoint_files import step_records
from ...checkpoint_files.step_records import StepRecord
from ..checkpoints import variables
from ..pace import shared
from .shared_rows import SharedRows


@dataclasses.dataclass
class _Table:
    """The rows of one list of variables."""

    sizes: list[tuple[Any, int]]
    handles: list[int]
    """The identities of the handles of the variables."""
    numbers: SharedRows
    rows: list[SharedRows]


_tables: list[_Table] = shared("record_tables", list)
"""Of this process. A second training with the same variables uses the graphs, and so the rows, of the first one."""


class Records:
    """Of one training. `parts`: the variables, by name; `path`: of the file; `used`: the handles of which there are graphs that write
    records. Raises OSError and ValueError.
    """

    def __init__(self, parts: Sequence[tuple[str, Any]], path: str, used: Sequence[list[int]]) -> None:
        self._path = path
        groups: dict[Any, list[tuple[str, Any]]] = {}
        for name, part in sorted(parts, key=lambda pair: bool(pair[1].shape.rank)):  # single numbers first, as in `_together`
            if part.shape.num_elements():
                groups.setdefault(_type_of_rows(part), []).append((name, part))
        empty = [(name, part) for name, part in parts if not part.shape.num_elements()]
        self._groups = {dtype: [part for _, part in group] for dtype, group in groups.items()}
        with open(path, "r+b", buffering=0) as file:
            self._table = self._find([id(part.handle) for _, part in parts], used, file)
            for row in range(step_records.ROWS):
                self._clear(file, row)
            told = [(rows.at, _told(group)) for rows, group in zip(self._table.rows, groups.values(), strict=True)]
            file.seek(0)
            file.write(step_records.head(self._table.numbers.at, [*told, (0, _told(empty))]))

    def _find(self, handles: list[int], used: Sequence[list[int]], file: Any) -> _Table:
        """The rows of these variables, or those that were made for others which have gone, or new ones."""
        import tensorflow as tf

        sizes = [(dtype, sum(part.shape.num_elements() for part in group)) for dtype, group in self._groups.items()]
        alike = [each for each in _tables if each.sizes == sizes]
        found = next((each for each in alike if each.handles == handles), None)
        found = found or next((each for each in alike if each.handles not in used), None)
        if found is None:
            file.truncate(max(step_records.HEAD, os.path.getsize(self._path)))
            name = f"orch_record_{len(_tables)}"
            numbers = SharedRows(file.fileno(), tf.int64, [], name)
            rows = [SharedRows(file.fileno(), dtype, [size], f"{name}_{place}") for place, (dtype, size) in enumerate(sizes)]
            found = _Table(sizes, handles, numbers, rows)
            _tables.append(found)
        found.handles = handles
        return found

    def _clear(self, file: Any, row: int) -> None:
        file.seek(self._table.numbers.at + row * len(step_records.NONE))
        file.write(step_records.NONE)

    def write(self, finished: Any) -> Any:
        """The operation that writes the values as they are at this place of the graph. `finished`: a tensor with the number of the steps
        before this one.
        """
        import tensorflow as tf

        row = finished % step_records.ROWS
        groups = zip(self._table.rows, self._groups.items(), strict=True)
        written = [rows.update(row, _together(tf, group, dtype)) for rows, (dtype, group) in groups]
        with tf.control_dependencies(written):
            return self._table.numbers.update(row, finished)

    def forget(self, step: int) -> None:
        """What is there of this step is not true."""
        with open(self._path, "r+b", buffering=0) as file:
            self._clear(file, (step - 1) % step_records.ROWS)

    def of(self, step: int) -> StepRecord | None:
        """The record of a step; None: there is none."""
        return next(iter(step_records.read(self._path, step)), None)


def _told(parts: Sequence[tuple[str, Any]]) -> list[tuple[str, str, list[int]]]:
    return [(name, variables.code_of(part) or "", list(part.shape)) for name, part in parts]


def _type_of_rows(part: Any) -> Any:
    """The type of the rows in which the bytes of a variable are. Those of four bytes, which most are, have rows in common."""
    import tensorflow as tf

    return tf.float32 if part.dtype.size == tf.float32.size else part.dtype


def _together(tf: Any, parts: Sequence[Any], dtype: Any) -> Any:
    """The bytes of variables, one after the other, as a vector of this type. Single numbers come first."""
    read = [tf.raw_ops.ReadVariableOp(resource=part.handle, dtype=part.dtype) for part in parts]
    values = [each if each.dtype == dtype else tf.bitcast(each, dtype) for each in read]
    numbers = [each for each in values if each.shape.rank == 0]
    flat = [each if each.shape.rank == 1 else tf.reshape(each, [-1]) for each in values[len(numbers) :]]
    flat = [tf.stack(numbers), *flat] if numbers else flat
    return tf.concat(flat, 0) if len(flat) > 1 else flat[0]
