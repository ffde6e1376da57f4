"""What a save says of the cluster and the software that made it, and how the workers of a cluster agree."""

from __future__ import annotations

import os
import platform
import sys
import weakref
from typing import Any

from ..context import Context

_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS")
"""Variables on which the rounding of sums depends."""
MOST = 1 << 26
_gathers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The function of each strategy by which its workers tell one another numbers."""


def is_multi_worker(strategy: Any) -> bool:
    """Whether several workers train together: under MultiWorkerMirroredStrategy."""
    extended = getattr(strategy, "extended", None)
    return type(extended).__name__ == "CollectiveAllReduceExtended" and int(getattr(extended, "_num_workers", 1)) > 1


def names_of_workers(task: Context, strategy: Any) -> tuple[str, list[str]]:
    """The chief, and all tasks that train together."""
    if not is_multi_worker(strategy):
        return task.task, [task.task]
    names = [f"{kind}-{index}" for kind in ("chief", "worker") for index in range(len(task.cluster.get(kind, ())))]
    return names[0], names


def world(strategy: Any, workers: list[str]) -> dict[str, Any]:
    import tensorflow as tf

    return {
        "strategy": type(strategy).__name__,
        "workers": workers,
        "replicas": int(strategy.num_replicas_in_sync),
        "threads": [tf.config.threading.get_intra_op_parallelism_threads(), tf.config.threading.get_inter_op_parallelism_threads()],
        "cpu": platform.machine(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "tf_keras", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def gather(strategy: Any, *values: int) -> list[list[int]]:
    """The numbers of all workers, in their order. All workers make this call."""
    if not is_multi_worker(strategy):
        return [list(values)]
    import numpy as np

    replicas = int(strategy.num_replicas_in_sync) // int(strategy.extended._num_workers)
    return [worker[0].tolist() for worker in _gathered(strategy, np.array([values] * replicas, np.int64))]


def gather_bytes(strategy: Any, own: bytes) -> list[bytes]:
    """The bytes of all workers, in their order, by messages of no more than `MOST` bytes. All workers make this call."""
    import numpy as np

    sizes = [size for (size,) in gather(strategy, len(own))]
    replicas = int(strategy.num_replicas_in_sync) // int(strategy.extended._num_workers)
    found = [bytearray() for _ in sizes]
    for begin in range(0, max(sizes), MOST):
        length = min(MOST, max(sizes) - begin)
        words = -(-length // (4 * replicas))  # each replica sends its share, which is as long in all workers
        mine = own[begin : begin + length].ljust(4 * replicas * words, b"\0")
        for place, sent in enumerate(_gathered(strategy, np.frombuffer(mine, np.int32).reshape(replicas, words))):
            found[place] += sent.tobytes()[:length]
    return [bytes(each[:size]) for each, size in zip(found, sizes, strict=True)]


def _gathered(strategy: Any, own: Any) -> Any:
    """An array with a row for each replica of a worker: those of all workers."""
    import tensorflow as tf

    def of_all(rows: Any) -> Any:
        def of_replica() -> Any:
            place = tf.distribute.get_replica_context().replica_id_in_sync_group % rows.shape[0]
            return rows[place : place + 1]

        return strategy.gather(strategy.run(of_replica), axis=0)

    # A function of its own: outside of one, TensorFlow makes a function for each call, which takes some 50 ms.
    if strategy not in _gathers:
        _gathers[strategy] = tf.function(of_all, reduce_retracing=True)
    found = _gathers[strategy](tf.constant(own)).numpy()
    return found.reshape(-1, *own.shape)
