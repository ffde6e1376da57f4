"""A `worker` or `ps` task of a ParameterServerStrategy cluster: TensorFlow's server, and nothing else."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from ..context import context


def serve() -> NoReturn:
    """Start this task's `tf.distribute.Server` and wait for it without end. Raises ValueError without a valid TF_CONFIG."""
    start_server().join()
    sys.exit(0)


def start_server() -> Any:
    """This task's `tf.distribute.Server`, which serves as long as the object exists. Raises ValueError without a valid TF_CONFIG."""
    task = context()
    if not task.cluster:
        raise ValueError("a server needs a cluster, and TF_CONFIG names none: start this task with orch, or set TF_CONFIG")
    import tensorflow as tf
    from tensorflow.python.eager import context as runtime

    # A server does not read tf.config. `config` is TensorFlow's own copy of these settings: a server without it would have one CPU device,
    # and would take all memory of all GPUs.
    return tf.distribute.Server(
        tf.train.ClusterSpec({name: list(addresses) for name, addresses in task.cluster.items()}),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
        config=runtime.context().config,
    )
