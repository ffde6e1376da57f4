"""Builds the strategy of the run for this task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...values.codec import to_json
from ..context import Context, context

BUILT_HERE = "_orch_built"
"""An attribute of a strategy of several workers that `worker.strategy` built; without orch the same call gives no strategy."""
_lock = threading.Lock()
_current: Any = None


def current() -> Any:
    """The strategy of this process. The first call builds it. See `worker.strategy`."""
    global _current
    with _lock:
        if _current is None:
            _current = _build(context())
        return _current


def only_serves(task: Context) -> bool:
    """True if the task is only a `tf.distribute.Server` for other tasks, and has no strategy itself."""
    return task.strategy == "parameter_server" and task.type in ("worker", "ps")


def built() -> Any:
    """The strategy of this process; None if `current` has not built it."""
    return _current


def _build(task: Context) -> Any:
    build = BUILDERS.get(task.strategy)
    if build is None:
        raise ValueError(f"the strategy {task.strategy!r} is not one of {', '.join(BUILDERS)}")
    # An evaluator reads checkpoints and computes without the other tasks, on its own devices.
    return _own_devices() if task.type == "evaluator" else build(task)


def _distribute() -> Any:
    """The module `tf.distribute`."""
    import tensorflow as tf

    return tf.distribute


def _multi_worker_mirrored(task: Context) -> Any:
    from . import collective_timeouts

    # The bootstrap of a task has done this already. A process that a task starts has no bootstrap.
    collective_timeouts.apply_soon(to_json(task.settings.collectives), "")
    strategy = _distribute().MultiWorkerMirroredStrategy()
    setattr(strategy, BUILT_HERE, True)
    return strategy


def _parameter_server(task: Context) -> Any:
    if only_serves(task):
        from .servers import serve

        serve()
    return _distribute().ParameterServerStrategy(_distribute().cluster_resolver.TFConfigClusterResolver())


def _tpu(task: Context) -> Any:
    from . import tpu_strategy

    return tpu_strategy.build(task.settings.tpu) or _own_devices()


def _own_devices() -> Any:
    devices = _devices()
    return _distribute().MirroredStrategy(devices) if len(devices) > 1 else _distribute().OneDeviceStrategy(devices[0])


def _devices() -> list[str]:
    """All logical GPUs; without GPUs, all logical CPUs. (MirroredStrategy itself would use one CPU.)"""
    import tensorflow as tf

    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in found]


def input_pipelines(task: Context) -> tuple[int, int]:
    """The number of tasks that divide an input, of MultiWorkerMirroredStrategy alone, and this task's number, from 0."""
    shares = task.strategy == "multi_worker_mirrored" and task.type != "evaluator"
    return (task.world_size, task.rank) if shares else (1, 0)


BUILDERS: dict[str, Callable[[Context], Any]] = {
    "multi_worker_mirrored": _multi_worker_mirrored,
    "parameter_server": _parameter_server,
    "mirrored": lambda task: _distribute().MirroredStrategy(_devices()),
    "one_device": lambda task: _distribute().OneDeviceStrategy(_devices()[0]),
    "tpu": _tpu,
    "none": lambda task: _distribute().get_strategy(),
}
