"""Reads the variables of a training for a snapshot, without a copy: some microseconds for each variable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import variables
from .variables import NamedVariable


class Values:
    """The variables of which a worker makes snapshots. `holds`: also those that all workers have alike."""

    def __init__(self, named: list[NamedVariable], *, holds: bool) -> None:
        self._parts: list[tuple[str, Callable[[], Any], str | None, bool]] = []
        for each in named:
            if each.is_own or holds:
                for name, part in zip(each.names(), each.components(), strict=True):
                    self._parts.append((name, reader(part), variables.code_of(part), each.is_own))
        self._shapes: list[tuple[int, ...]] = []
        self._told = b""

    def read(self, arrays: dict[str, Any]) -> tuple[bytes, list[Any]]:
        """Return what the tensors are, as JSON, and their bytes. `arrays`: more, which all workers have alike.

        The bytes are those of TensorFlow, so they are to be written before the next step.
        """
        values = [read() for _, read, _, _ in self._parts]
        shapes = [value.shape for value in values]
        if shapes != self._shapes:
            self._shapes = shapes
            known = zip(self._parts, shapes, strict=True)
            self._told = json.dumps({name: (code, list(shape), is_own) for (name, _, code, is_own), shape in known}).encode()
        if not arrays:
            return self._told, [as_bytes(value) for value in values]
        tensors = {name: variables.tensor(array) for name, array in arrays.items()}
        more = {name: (tensor.dtype, list(tensor.shape), False) for name, tensor in tensors.items()}
        told = json.dumps({**json.loads(self._told), **more}).encode()
        return told, [*map(as_bytes, values), *(tensor.data for tensor in tensors.values())]


def reader(part: Any) -> Callable[[], Any]:
    """A function that returns the value of a variable as an array of NumPy, with TensorFlow's own buffer if that is in this host's memory.

    As long as the array is used, an assignment to the variable gets another buffer (core/kernels/training_op_helpers.h).
    """
    from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

    if not isinstance(part, resource_variable_ops.BaseResourceVariable):
        return lambda: part.numpy()
    read, handle, dtype = gen_resource_variable_ops.read_variable_op, part.handle, part.dtype
    return lambda: read(handle, dtype)._numpy()  # numpy() makes a copy


def as_bytes(value: Any) -> Any:
    """The buffer of an array, as bytes."""
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
