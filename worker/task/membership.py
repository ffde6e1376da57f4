"""Whether this process was in its cluster: asked once, when the program is over."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TENSORFLOW, _CONTEXT = "tensorflow", "tensorflow.python.eager.context"
_CHILDREN_S = 0.1
"""Children that took less of a processor altogether have made no cluster. (`import tensorflow` has one, of 2 ms.)"""
_TIMEOUT_S = 0.2


def own_port(tf_config: str) -> int:
    """The port at which a TF_CONFIG has its own task listen."""
    config = json.loads(tf_config)
    address: str = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    return int(address.rpartition(":")[2])


def was_in_no_cluster(tf_config: str) -> bool:
    """Whether it is certain that neither this process nor a child of its own has been in the cluster of this TF_CONFIG.

    A cluster may come and go faster than any port is looked at from outside, so TensorFlow itself is asked. False where that
    cannot be done, and in a program without TensorFlow: what that has done with its peers nobody here knows.
    """
    try:
        return _TENSORFLOW in sys.modules and not (_has_cluster() or _has_children() or _is_open(own_port(tf_config)))
    except (AttributeError, OSError, ValueError, LookupError, TypeError):
        return False


def _has_cluster() -> bool:
    """TensorFlow's runtime in this process has been told of a cluster: of MultiWorkerMirroredStrategy, or of a coordinator's."""
    module: Any = sys.modules.get(_CONTEXT)
    context = module.context_safe() if module is not None else None
    return context is not None and (context._server_def is not None or context._collective_ops_server_def is not None)


def _has_children() -> bool:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if used.ru_utime + used.ru_stime > _CHILDREN_S:
        return True
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            if file.read().strip():
                return True
    return False


def _is_open(port: int) -> bool:
    """Something listens there, as a `tf.distribute.Server` of this process does: TensorFlow never takes one down."""
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    return True
