"""Describes how a tensor is split over the logical devices of a replica: for `worker.split`, the spec's `tpu.partition` and ``orch tpu``.
Pure.

The rules are those of `TPUStrategy.experimental_split_to_logical_devices` (tensorflow/python/distribute/tpu_strategy.py), which reports
only the first broken rule. This module has a message for each rule, and reports all broken rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..values.words import count_of

Shape = Sequence[int | None]
"""The size of each dimension of a tensor; None: unknown before the start, as for a batch of any size."""

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
}
"""The types of tensors on TPUs, with the bytes of one element."""


def complaints(dims: Sequence[int], shape: Shape | None, devices: int | None) -> Iterator[str]:
    """A sentence for each rule that the split of a tensor breaks.

    `dims`: the number of parts of each dimension. `shape`: of the tensor; None: unknown. `devices`: the number of logical devices of a
    replica; None: unknown.
    """
    parts = math.prod(dims)
    if shape is not None and len(dims) != len(shape):
        yield (
            f"{list(dims)} has {count_of(len(dims), 'number')}, and the tensor has {count_of(len(shape), 'dimension')}, {show(shape)}: "
            "the list needs one number for each dimension of the tensor"
        )
    elif shape is not None:
        for index, (size, number) in enumerate(zip(shape, dims, strict=True)):
            if size is not None and size % number:
                yield f"dimension {index} has the size {size}, which cannot be divided into {number} equal parts"
    if devices is not None and parts != devices:
        yield (
            f"{list(dims)} makes {count_of(parts, 'part')}, and a replica has {count_of(devices, 'logical device')}: "
            f"the product of the numbers must be {devices}"
        )


def part_of(dims: Sequence[int], shape: Shape) -> tuple[int | None, ...]:
    """The shape of the part of each logical device. The split must be possible."""
    return tuple(None if size is None else size // number for size, number in zip(shape, dims, strict=True))


def count_bytes(shape: Shape, dtype: str) -> int:
    """The bytes of a tensor, without XLA's padding. A dimension of unknown size counts as one. Raises KeyError for an unknown type."""
    return math.prod(1 if size is None else size for size in shape) * ITEM_BYTES[dtype]


def show(shape: Shape) -> str:
    """A shape as text: ``[?, 224, 224, 3]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
