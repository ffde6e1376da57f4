"""Types that TensorFlow's collectives do not know (bfloat16, int8, uint8 and others): several workers make, add up and gather variables of
these types by way of a wider type that holds each of their numbers exactly.

A sum is rounded once, at its end: bfloat16 is added up in float32, and small whole numbers in int32.
"""

from __future__ import annotations

import functools

from .. import patches
from ..patches.features import TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MODULE = "tensorflow.python.distribute.collective_all_reduce_strategy"
_FIRST_VALUE = "_get_variable_creator_initial_value"
_WIDER = {"bfloat16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
_GATHERED = {**_WIDER, "bool": "int32"}
"""TensorFlow knows how to send a bool, but not how to gather it."""


def apply_soon() -> None:
    """Have the types known as soon as the program has imported TensorFlow."""
    patches.after(TYPES, _MODULE, lambda module: _install())


def _install() -> None:
    patches.replace(TYPES, "CollectiveAllReduceExtended.__init__", _begin)
    patches.replace(TYPES, "CollectiveReplicaLauncher.all_reduce", _by_way_of(_WIDER))
    patches.replace(TYPES, "CollectiveReplicaLauncher._all_gather", _by_way_of(_GATHERED))


def _by_way_of(wider: dict[str, str]) -> Any:
    def exchange(real: Any, self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        wide = wider.get(value.dtype.name) if tf.is_tensor(value) else None
        if wide is None:
            return real(self, value, *args, **kwargs)
        return tf.cast(real(self, tf.cast(value, wide), *args, **kwargs), value.dtype)

    return exchange


def _begin(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    real(self, *args, **kwargs)
    vars(self)[_FIRST_VALUE] = functools.partial(_first_value, getattr(self, _FIRST_VALUE))


def _first_value(real: Any, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
    """The function that makes the first value of a variable, which the chief sends to the other workers."""
    import tensorflow as tf

    dtype = kwargs.get("dtype")
    if replica_id != 0 or (dtype is not None and tf.as_dtype(dtype).name not in _WIDER):
        return real(replica_id, device, primary_var, **kwargs)

    def first_value() -> Any:
        value = kwargs["initial_value"]
        value = value() if callable(value) else value
        value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype)  # a checkpoint's value is wrapped
        wide = _WIDER.get(value.dtype.name, value.dtype.name)
        found = real(replica_id, device, primary_var, **{**kwargs, "initial_value": tf.cast(value, wide), "dtype": wide})
        return tf.cast(found(), value.dtype)

    return first_value
