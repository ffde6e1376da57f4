"""How a tensor is split over the logical devices of a replica: for `worker.split`, the spec's `tpu.partition` and ``orch tpu``. Pure.

The rules are those of `TPUStrategy.experimental_split_to_logical_devices` (tensorflow/python/distribute/tpu_strategy.py), which names the
first one broken; here each has its own words, and all that are broken are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..words import count_of

Shape = Sequence[int | None]
"""The size of each dimension of a tensor; None: nobody knows it before the start, as of a batch of any size."""

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
}
"""The types of tensors that TPUs take, and the bytes of one element."""


def complaints(dims: Sequence[int], shape: Shape | None, devices: int | None) -> Iterator[str]:
    """What is wrong with splitting a tensor: a sentence for each rule that is broken.

    `dims`: into how many parts each dimension is split. `shape`: of the tensor; None: unknown. `devices`: how many logical devices a
    replica has; None: unknown.
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
    """The shape of what each logical device gets of a tensor that may be split so."""
    return tuple(None if size is None else size // number for size, number in zip(shape, dims, strict=True))


def count_bytes(shape: Shape, dtype: str) -> int:
    """The bytes of a tensor, without the padding that XLA may add; a dimension of unknown size counts as one. KeyError: no such type."""
    return math.prod(1 if size is None else size for size in shape) * ITEM_BYTES[dtype]


def show(shape: Shape) -> str:
    """``[?, 224, 224, 3]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
