"""Writes what this worker has for itself at the end of each step, in the graph of the step (`checkpoint_files.step_records`).

Each operation of a graph costs some microseconds of each step, so the values of one type are put together.
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
        for name, part in parts:
            if part.shape.num_elements():
                groups.setdefault((part.dtype, part.shape.rank == 0), []).append((name, part))
        empty = [(name, part) for name, part in parts if not part.shape.num_elements()]
        self._groups = [[part for _, part in group] for group in groups.values()]
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

        sizes = [(group[0].dtype, sum(part.shape.num_elements() for part in group)) for group in self._groups]
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
        written = [rows.update(row, _together(tf, group)) for rows, group in zip(self._table.rows, self._groups, strict=True)]
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


def _together(tf: Any, parts: Sequence[Any]) -> Any:
    """The values of variables of one type, of which all or none are single numbers, one after the other."""
    values = [tf.raw_ops.ReadVariableOp(resource=part.handle, dtype=part.dtype) for part in parts]
    if values[0].shape.rank == 0:
        return tf.stack(values)
    flat = [each if each.shape.rank == 1 else tf.reshape(each, [-1]) for each in values]
    return tf.concat(flat, 0) if len(flat) > 1 else flat[0]
