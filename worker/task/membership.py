"""Whether this process was in its cluster: asked once, when the program is over.

By then `sys.path` is the program's, and a module that is imported may be a file of the user's. So nothing is imported at the end.
"""

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
_LISTENS = "0A"
"""TCP_LISTEN of the kernel's include/net/tcp_states.h, as in proc_pid_net(5)."""


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
    except Exception:  # whatever the program has done to Python: its end is not ours to spoil
        return False


def _has_cluster() -> bool:
    """TensorFlow's runtime in this process has been told of a cluster: of MultiWorkerMirroredStrategy, or of a coordinator's."""
    module: Any = sys.modules.get(_CONTEXT)
    context = module.context_safe() if module is not None else None
    return context is not None and (context._server_def is not None or context._collective_ops_server_def is not None)


def _has_children() -> bool:
    used = os.times()
    if used.children_user + used.children_system > _CHILDREN_S:
        return True
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            if file.read().strip():
                return True
    return False


def _is_open(port: int) -> bool:
    """Something listens there, as a `tf.distribute.Server` of this process does: TensorFlow never takes one down."""
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if not os.path.exists(path):
            continue  # a kernel without IPv6; `_has_children` has seen that there is a /proc
        with open(path) as file:
            for line in file:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
    return False
