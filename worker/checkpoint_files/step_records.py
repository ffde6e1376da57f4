"""What each worker has for itself at the end of a step, as its training writes it within the step. Standard library only.

TensorFlow writes a record itself, in the graph of the step, by its operation `WriteFile` (worker/task/snapshots/step_gate.py): a line of
JSON, which names the values, and a serialized `TensorProto` of bytes (tensorflow/core/framework/tensor.proto). These are the number of the
step, the values one after the other, and the number again. A worker writes its records into four files in memory by turns: one that is
killed while it writes leaves the records before, and of two survivors one may be a step ahead of the other.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Sequence
from typing import Any

from ..values.fast_dataclass import dataclass
from . import tensor_file
from .tensor_file import Tensor

NUMBER = struct.Struct("<q")
_CONTENT = 4
"""The field of a `TensorProto` that has the bytes."""
_VARINT, _LENGTH = 0, 2


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a worker had for itself at the end of a step."""

    step: int
    tensors: dict[str, Tensor]


def head(told: Sequence[tuple[str, str, Sequence[int]]]) -> bytes:
    """The line that names the values: their names, their types (`tensor_file.SIZES`) and their shapes."""
    return json.dumps([[name, code, list(shape)] for name, code, shape in told]).encode() + b"\n"


def read(path: str) -> StepRecord | None:
    """The record in a file; None: it has no whole one."""
    # The program may have written anything there.
    damage = (ValueError, LookupError, TypeError, RecursionError, struct.error)
    with contextlib.suppress(OSError, *damage), open(path, "rb") as file:
        data = file.read()
        line, _, proto = data.partition(b"\n")
        content = _content(proto)
        (first,), (last,) = NUMBER.unpack(content[: NUMBER.size]), NUMBER.unpack(content[-NUMBER.size :])
        at, tensors = NUMBER.size, {}
        for name, code, shape in json.loads(line):
            size = tensor_file.size_of(code, shape)
            tensors[name] = Tensor(code, tuple(shape), content[at : at + size])
            at += size
        return StepRecord(first, tensors) if first == last and at + NUMBER.size == len(content) else None
    return None


def _content(proto: bytes) -> bytes:
    """The bytes of a serialized `TensorProto`. Raises ValueError or IndexError for one that is cut off."""
    at = 0
    while at < len(proto):
        key, at = _varint(proto, at)
        field, kind = key >> 3, key & 7
        if kind not in (_VARINT, _LENGTH):
            raise ValueError(kind)
        length, at = _varint(proto, at)
        if kind == _LENGTH:
            if at + length > len(proto):
                raise ValueError(length)
            if field == _CONTENT:
                return proto[at : at + length]
            at += length
    raise ValueError("no content")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def same(one: Any, other: Any) -> bool:
    """Whether two buffers have the same bytes."""
    return memoryview(one).cast("B") == memoryview(other).cast("B")
