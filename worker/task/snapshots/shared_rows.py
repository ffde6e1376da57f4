"""Rows of values that the graph of a step writes into a file in memory, which outlives the process.

TensorFlow has an operation that writes a file, but its five calls of the kernel take several times as long as all else that orch adds to a
step. So the rows belong to a variable whose memory is the file's: the whole pages inside of what TensorFlow has allocated for the variable
are replaced by pages of the file (mmap with MAP_FIXED), and `ResourceScatterUpdate` changes a variable in its place. The variable is never
freed, nor assigned again, before the process ends: then its pages are the process's own again. Whether all this holds is tried when the
variable is made.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

from ...checkpoint_files.step_records import ROWS

_MAP_FIXED = 0x10
"""Of Linux, which the module mmap does not name."""
_mapped: list[tuple[int, int]] = []
"""The addresses and lengths of all pages that are a file's."""


class SharedRows:
    """`ROWS` tensors of one shape. `fd`: of a file in memory, which gets longer, and must never get shorter; `name`: of the variable.

    Raises OSError if this is not possible here.
    """

    def __init__(self, fd: int, dtype: Any, shape: Sequence[int], name: str) -> None:
        import tensorflow as tf
        from tensorflow.python.ops import gen_resource_variable_ops

        width = dtype.size * math.prod(shape)
        self._first = math.ceil(mmap.PAGESIZE / width)
        """So many rows before those of the file, and after them, make sure that the pages of the latter have nothing else."""
        whole = [ROWS + 2 * self._first, *shape]
        self._handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=whole, shared_name=name, container="")
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.cast(tf.fill(whole, 0), dtype))
        memory = gen_resource_variable_ops.read_variable_op(self._handle, dtype)._numpy()
        begin, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        del memory  # as long as it is used, an update gives the variable another memory
        low, high = _page_after(begin), end // mmap.PAGESIZE * mmap.PAGESIZE
        at = _page_after(os.fstat(fd).st_size)
        os.ftruncate(fd, at + high - low)
        _map(low, high - low, mmap.MAP_SHARED, fd, at)
        if not _mapped:
            atexit.register(leave_files)
        _mapped.append((low, high - low))
        self.at = at + begin + self._first * width - low
        """Where the first row is in the file."""
        for row in range(ROWS):
            value = tf.cast(tf.fill(shape, row % 2), dtype)
            self.update(row, value)
            if os.pread(fd, width, self.at + row * width) != value.numpy().tobytes():
                raise OSError(f"an update of {dtype.name} does not change memory in its place")

    def update(self, row: Any, values: Any) -> Any:
        """The operation that changes a row. `row`: its number, or a tensor with it."""
        import tensorflow as tf

        return tf.raw_ops.ResourceScatterUpdate(resource=self._handle, indices=row + self._first, updates=values)


def _page_after(at: int) -> int:
    return -(-at // mmap.PAGESIZE) * mmap.PAGESIZE


def leave_files() -> None:
    """Let all pages be the process's own again, with what they hold: what frees the variables, and uses their memory, changes no file then.

    A process that ends by `os._exit` or a signal frees nothing.
    """
    while _mapped:
        address, length = _mapped.pop()
        held = ctypes.string_at(address, length)
        _map(address, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        ctypes.memmove(address, held, length)


def _map(address: int, length: int, flags: int, fd: int, at: int) -> None:
    """Let this memory of the process be a part of a file, or of none."""
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    system.mmap.restype = ctypes.c_void_p
    if system.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, fd, at) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
