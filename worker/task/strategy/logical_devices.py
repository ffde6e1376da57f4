"""A tensor on the logical devices of a replica: `worker.split`, `worker.replicate` and `worker.assign`.

They add TensorFlow's own annotations (`XlaSharding`) under a `TPUStrategy` whose replicas have several logical devices. Otherwise there is
one device, and the tensor is returned unchanged, with one note. So a script for a TPU also runs on a laptop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...settings import partition
from ..context import context
from ..patches.import_hooks import print_once


def split(tensor: Any, dims: Sequence[int] | str) -> Any:
    place = "worker.split: "
    if isinstance(dims, str):
        named = {one.name: one.dims for one in context().settings.tpu.partition}
        if dims not in named:
            raise ValueError(f"{place}orch.yaml has no tpu.partition of the name {dims!r}; it names {', '.join(named) or 'none'}")
        place, dims = f"{place}tpu.partition.{dims}: ", named[dims]
    wanted = [int(number) for number in dims]
    if any(number < 1 for number in wanted):
        raise ValueError(f"{place}{wanted} must be whole numbers from 1 on")
    shape, expected = getattr(tensor, "shape", None), _expected_devices()
    known = None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)
    if broken := list(partition.complaints(wanted, known, expected if expected > 1 else None)):
        raise ValueError(f"{place}{'; '.join(broken)}")
    return _annotate("split", "experimental_split_to_logical_devices", tensor, wanted)


def replicate(tensor: Any) -> Any:
    return _annotate("replicate", "experimental_replicate_to_logical_devices", tensor)


def assign(tensor: Any, device: int) -> Any:
    expected = _expected_devices()
    if device < 0 or device >= expected > 1:
        raise ValueError(f"worker.assign: there is no logical device {device}: a replica has {expected}, from 0 to {expected - 1}")
    return _annotate("assign", "experimental_assign_to_logical_device", tensor, device)


def _here() -> tuple[Any, int]:
    """The strategy of the caller, and the number of logical devices of each of its replicas."""
    import tensorflow as tf

    from . import strategy_builder

    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy_builder.built()
    # As `experimental_split_to_logical_devices` finds them: [replica, logical device] -> name.
    devices = getattr(getattr(strategy, "extended", None), "_tpu_devices", None)
    return strategy, 1 if devices is None else int(devices.shape[1])


def _expected_devices() -> int:
    """The number of logical devices of a replica; on a machine without a TPU, as the spec has it, or else 1."""
    devices = _here()[1]
    return devices if devices > 1 else math.prod(context().settings.tpu.computation_shape or ())


def _annotate(what: str, method: str, tensor: Any, *args: Any) -> Any:
    """Call the strategy's method if a replica has several devices; else return the tensor unchanged. `what`: the function of `worker`.

    TensorFlow can annotate only a graph (`Sharding.apply_to_tensor` in its xla_sharding.py). Raises RuntimeError outside a `tf.function`.
    """
    import tensorflow as tf

    strategy, devices = _here()
    if devices == 1:
        print_once(f"worker.{what}: each replica has one device here, so tensors stay whole", is_note=True)
        return tensor
    if tf.executing_eagerly():
        raise RuntimeError(f"worker.{what}: works in a tf.function only: call it in the function that strategy.run runs inside of one")
    return getattr(strategy, method)(tensor, *args)
