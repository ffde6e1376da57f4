"""Rows of values that the graph of a step writes into a file in memory, which outlives the process.

TensorFlow has an operation that writes a file, but its five calls of the kernel take several times as long as all else that orch adds to a
step. So the rows belong to a variable whose memory is the file, mapped into this process: TensorFlow takes an array of NumPy as it is
(DLPack), and `ResourceScatterUpdate` changes a variable in its place if nothing else uses its memory. Of an array, TensorFlow holds that
NumPy uses it; of a part of an array, it does not (`SubBuffer` in tensorflow/core/framework/tensor.cc). Whether the updates come to the file
is tried when the variable is made. The memory is never that of TensorFlow's allocator: when TensorFlow frees the variable, the pages are
unmapped, and no other value can come to be in the file.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

from ...checkpoint_files.step_records import ROWS

_BOUNDARY = 64
"""TensorFlow copies a part of a vector that does not begin and end at a multiple of these bytes (`IsDim0SliceAligned`)."""


class SharedRows:
    """`ROWS` tensors of one shape. `fd`: of a file in memory, which gets longer, and must never get shorter; `name`: of the variable.

    Raises OSError if this is not possible here, such as for a type of which TensorFlow changes no variable in its place.
    """

    def __init__(self, fd: int, dtype: Any, shape: Sequence[int], name: str) -> None:
        import numpy as np
        import tensorflow as tf

        elements = math.prod(shape)
        width = dtype.size * elements
        count = ROWS * (_BOUNDARY // math.gcd(_BOUNDARY, ROWS * width))
        self.at = -(-os.fstat(fd).st_size // mmap.PAGESIZE) * mmap.PAGESIZE
        """Where the first row is in the file."""
        size = count * width + dtype.size  # the element after the rows makes these a part
        os.ftruncate(fd, self.at + size)
        memory = np.frombuffer(mmap.mmap(fd, size, offset=self.at), np.uint8).reshape([-1, dtype.size] if dtype.size > 1 else [-1])
        self._handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[count, *shape], shared_name=name, container="")
        try:
            part = tf.bitcast(tf.experimental.dlpack.from_dlpack(memory.__dlpack__()), dtype)[: count * elements]
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.reshape(part, [count, *shape]))
            del part  # as long as it is used, an update gives the variable another memory
            for row in range(ROWS):
                value = tf.cast(tf.fill(shape, row % 2), dtype)
                self.update(row, value)
                if os.pread(fd, width, self.at + row * width) != value.numpy().tobytes():
                    raise OSError(f"an update of {dtype.name} does not change memory in its place")
        except tf.errors.OpError as error:
            raise OSError(f"TensorFlow updates no rows of {dtype.name}: {type(error).__name__}") from None

    def update(self, row: Any, values: Any) -> Any:
        """The operation that changes a row. `row`: its number, or a tensor with it."""
        import tensorflow as tf

        return tf.raw_ops.ResourceScatterUpdate(resource=self._handle, indices=row, updates=values)
