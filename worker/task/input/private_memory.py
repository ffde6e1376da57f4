"""TensorFlow gets memory of its own for the arrays that Python functions of a dataset return: the program's arrays are never written.

An array that a generator, a `PyDataset` or a `numpy_function` returns becomes a tensor without a copy if it begins at a 64-byte boundary
(tensorflow/python/lib/core/py_func.cc). Several replicas get slices of this tensor, and an operation may write its result into the memory
of a slice that no one else reads: it does not see that the memory is NumPy's. So labels changed in the program's own array, and in the file
of `np.load(mmap_mode="r+")`; a file that was opened for reading ended the process. Arrays given in any other way (`tf.constant`,
`from_tensor_slices`, `py_function`, arguments of a `tf.function`) are copied by TensorFlow itself.
"""

from __future__ import annotations

from .. import patches
from ..patches.features import COPIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCRIPT_OPS = "tensorflow.python.ops.script_ops"
_BOUNDARY = 64
"""TensorFlow takes memory that begins at a multiple of this as it is (`kAllocatorAlignment` in tensorflow/core/framework/allocator.h)."""


def copy_soon() -> None:
    """Copy the arrays as soon as the program has imported TensorFlow."""
    patches.after(COPIES, _SCRIPT_OPS, lambda module: _mend())


def _mend() -> None:

    patches.replace(COPIES, "FuncRegistry.__call__", _call)


def _call(real: Any, *args: Any) -> Any:
    """Call a function for TensorFlow, and copy the arrays that it returns."""
    returned = real(*args)
    return [_copied(value) for value in returned] if isinstance(returned, list) else _copied(returned)


def _copied(value: Any) -> Any:
    """A copy of an array, at a boundary where TensorFlow does not copy the array once more. Texts and tensors stay as they are."""
    import numpy as np

    if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.dtype.kind in "SU" or not value.nbytes:
        return value
    memory: Any = np.empty(value.nbytes + _BOUNDARY, np.uint8)
    begin = -memory.__array_interface__["data"][0] % _BOUNDARY
    copy = memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy
