"""A tensor on the logical devices of a replica: `worker.split`, `worker.replicate` and `worker.assign`.

They add TensorFlow's own annotations (`XlaSharding`) under a `TPUStrategy` whose replicas have several logical devices. Anywhere else
there is one device, and the tensor is given back as it is, with one note; so a script for a TPU runs on a laptop too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...tensorflow_facts import partition
from ..context import context

if TYPE_CHECKING:
    from ...settings.tpu_settings import Partition, TpuSettings

_noted: set[str] = set()


def split(tensor: Any, dims: Sequence[int] | str) -> Any:
    """See `worker.split`."""
    settings = context().settings.tpu
    said = _of_spec(settings, dims) if isinstance(dims, str) else None
    wanted = [int(number) for number in (said.dims if said is not None else dims)]
    strategy, devices = _here()
    shape = getattr(tensor, "shape", None)
    known = None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)
    if any(number < 1 for number in wanted):
        raise ValueError(f"worker.split: {wanted} must be whole numbers from 1 on")
    expected = devices if devices > 1 else math.prod(settings.computation_shape) if settings.computation_shape else None
    broken = [*partition.complaints(wanted, known, expected)]
    if broken:
        name = f"tpu.partition.{said.name}: " if said is not None else ""
        raise ValueError(f"worker.split: {name}{'; '.join(broken)}")
    if devices == 1:
        return _whole(tensor, "split")
    return _traced("split", strategy.experimental_split_to_logical_devices)(tensor, wanted)


def replicate(tensor: Any) -> Any:
    """See `worker.replicate`."""
    strategy, devices = _here()
    return _whole(tensor, "replicate") if devices == 1 else _traced("replicate", strategy.experimental_replicate_to_logical_devices)(tensor)


def assign(tensor: Any, device: int) -> Any:
    """See `worker.assign`."""
    strategy, devices = _here()
    expected = devices if devices > 1 else math.prod(context().settings.tpu.computation_shape or ())
    if device < 0 or (expected > 1 and device >= expected):
        raise ValueError(f"worker.assign: there is no logical device {device}: a replica has {expected}, from 0 to {expected - 1}")
    if devices == 1:
        return _whole(tensor, "assign")
    return _traced("assign", strategy.experimental_assign_to_logical_device)(tensor, device)


def _of_spec(settings: TpuSettings, name: str) -> Partition:
    found = {one.name: one for one in settings.partition}
    if name not in found:
        names = f"it names {', '.join(found)}" if found else "it names none"
        raise ValueError(f"worker.split: the spec has no tpu.partition of the name {name!r}; {names}")
    return found[name]


def _here() -> tuple[Any, int]:
    """The strategy that the caller is in, and how many logical devices each of its replicas has."""
    import tensorflow as tf

    from . import strategy_builder

    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy_builder.built()
    # What `experimental_split_to_logical_devices` itself asks: [replica, logical device] -> name.
    devices = getattr(getattr(strategy, "extended", None), "_tpu_devices", None)
    return strategy, 1 if devices is None else int(devices.shape[1])


def _traced(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """TensorFlow's call, which can only annotate a graph (`Sharding.apply_to_tensor` in its xla_sharding.py); otherwise RuntimeError."""
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(f"worker.{what}: works in a tf.function only: call it in the function that strategy.run runs inside of one")
    return call


def _whole(tensor: Any, what: str) -> Any:
    if what not in _noted:
        _noted.add(what)
        print(f"orch: worker.{what}: each replica has one device here, so tensors stay whole", file=sys.stderr, flush=True)
    return tensor
