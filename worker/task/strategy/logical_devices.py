"""A tensor on the logical devices of a replica: `worker.split`, `worker.replicate` and `worker.assign`.

They add TensorFlow's own annotations (`XlaSharding`) under a `TPUStrategy` whose replicas have several logical devices. Otherwise there is
one device, and the tensor is returned unchanged, with one note. So a script for a TPU also runs on a laptop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...tensorflow_facts import partition
from ..context import context
from ..import_hooks import print_once

if TYPE_CHECKING:
    from ...settings.tpu_settings import Partition, TpuSettings


def split(tensor: Any, dims: Sequence[int] | str) -> Any:
    """See `worker.split`."""
    settings = context().settings.tpu
    named = _partition(settings, dims) if isinstance(dims, str) else None
    wanted = [int(number) for number in (named.dims if named is not None else dims)]
    strategy, devices = _here()
    shape = getattr(tensor, "shape", None)
    known = None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)
    if any(number < 1 for number in wanted):
        raise ValueError(f"worker.split: {wanted} must be whole numbers from 1 on")
    expected = devices if devices > 1 else math.prod(settings.computation_shape) if settings.computation_shape else None
    broken = [*partition.complaints(wanted, known, expected)]
    if broken:
        name = f"tpu.partition.{named.name}: " if named is not None else ""
        raise ValueError(f"worker.split: {name}{'; '.join(broken)}")
    return _annotate(strategy, devices, "split", "experimental_split_to_logical_devices", tensor, wanted)


def replicate(tensor: Any) -> Any:
    """See `worker.replicate`."""
    return _annotate(*_here(), "replicate", "experimental_replicate_to_logical_devices", tensor)


def assign(tensor: Any, device: int) -> Any:
    """See `worker.assign`."""
    strategy, devices = _here()
    expected = devices if devices > 1 else math.prod(context().settings.tpu.computation_shape or ())
    if device < 0 or (expected > 1 and device >= expected):
        raise ValueError(f"worker.assign: there is no logical device {device}: a replica has {expected}, from 0 to {expected - 1}")
    return _annotate(strategy, devices, "assign", "experimental_assign_to_logical_device", tensor, device)


def _partition(settings: TpuSettings, name: str) -> Partition:
    found = {one.name: one for one in settings.partition}
    if name not in found:
        names = f"it names {', '.join(found)}" if found else "it names none"
        raise ValueError(f"worker.split: the spec has no tpu.partition of the name {name!r}; {names}")
    return found[name]


def _here() -> tuple[Any, int]:
    """The strategy of the caller, and the number of logical devices of each of its replicas."""
    import tensorflow as tf

    from . import strategy_builder

    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy_builder.built()
    # As `experimental_split_to_logical_devices` finds them: [replica, logical device] -> name.
    devices = getattr(getattr(strategy, "extended", None), "_tpu_devices", None)
    return strategy, 1 if devices is None else int(devices.shape[1])


def _annotate(strategy: Any, devices: int, what: str, method: str, tensor: Any, *args: Any) -> Any:
    """Call the strategy's method if a replica has several devices; else return the tensor unchanged. `what`: the function of `worker`.

    TensorFlow can annotate only a graph (`Sharding.apply_to_tensor` in its xla_sharding.py). Raises RuntimeError outside a `tf.function`.
    """
    import tensorflow as tf

    if devices == 1:
        print_once(f"worker.{what}: each replica has one device here, so tensors stay whole")
        return tensor
    if tf.executing_eagerly():
        raise RuntimeError(f"worker.{what}: works in a tf.function only: call it in the function that strategy.run runs inside of one")
    return getattr(strategy, method)(tensor, *args)
