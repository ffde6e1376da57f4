"""Numbers that stand for tensors and rows, small enough to be written down and compared by a process without NumPy.

The numbers of a tensor are sums of its elements with signs, in float64. They are linear: those of a sum of tensors are the sums of theirs,
those of a tensor that is twice as large are twice as large, and the mean of their squares is about the sum of the squares of the elements.
"""

from __future__ import annotations

import zlib
from typing import Any

SIGNS = 12
_BLOCK = 1 << 12
_signs: list[Any] = []


def of_tensor(value: Any) -> list[float] | None:
    """The numbers of a tensor; None: it has none that can be read."""
    import numpy as np
    import tensorflow as tf

    if value is None or not tf.executing_eagerly():
        return None
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    flat = np.asarray(value.numpy() if hasattr(value, "numpy") else value).astype(np.float64).ravel()
    if not _signs:
        _signs.append(np.random.RandomState(1).choice([-1.0, 1.0], size=(_BLOCK, SIGNS)))
    blocks = -(-flat.size // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[: flat.size] = flat
    of_blocks = np.random.RandomState(2).choice([-1.0, 1.0], size=(blocks, SIGNS))
    return [float(number) for number in ((padded.reshape(blocks, _BLOCK) @ _signs[0]) * of_blocks).sum(0)]


def of_rows(data: Any) -> tuple[list[int], list[list[int]]]:
    """A checksum of each row of the tensors that have as many rows as the first one; and those of each of these tensors."""
    import tensorflow as tf

    leaves = [leaf for leaf in tf.nest.flatten(data, expand_composites=False) if _rows(leaf) is not None]
    count = _rows(leaves[0]) if leaves else 0
    each = [[zlib.crc32(row) for row in _texts(leaf)] for leaf in leaves if _rows(leaf) == count]
    return [zlib.crc32(repr(row).encode()) for row in zip(*each, strict=True)], each


def _rows(leaf: Any) -> int | None:
    import numpy as np
    import tensorflow as tf

    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    if isinstance(leaf, np.ndarray):
        return len(leaf) if leaf.ndim else None
    is_read = hasattr(leaf, "numpy") and getattr(leaf, "shape", None) is not None and not isinstance(leaf, tf.Variable)
    return int(leaf.shape[0]) if is_read and leaf.shape.rank else None


def _texts(leaf: Any) -> list[bytes]:
    import numpy as np
    import tensorflow as tf

    rows = leaf.to_list() if isinstance(leaf, tf.RaggedTensor) else np.asarray(leaf)
    if isinstance(rows, np.ndarray) and rows.dtype != object:
        return [row.tobytes() for row in np.ascontiguousarray(rows)]
    return [repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in rows]
