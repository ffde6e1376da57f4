"""Defines what a save says of the cluster and the software that made it."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from ..context import Context

_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_DETERMINISTIC_OPS")


def is_multi_worker(strategy: Any) -> bool:
    """True if several workers train together: under MultiWorkerMirroredStrategy."""
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
