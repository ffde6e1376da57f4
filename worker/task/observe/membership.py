"""Finds whether this process was in its cluster. Determined once, when the program is over.

At that time, `sys.path` is the program's, and an import might find a file of the user. So these functions import nothing.
"""

from __future__ import annotations

import json
import os
import sys

_TENSORFLOW, _CONTEXT = "tensorflow", "tensorflow.python.eager.context"
_LISTENS = "0A"
"""TCP_LISTEN of the kernel's include/net/tcp_states.h, as in proc_pid_net(5)."""


def own_port(tf_config: str) -> int:
    config = json.loads(tf_config)
    address: str = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    return int(address.rpartition(":")[2])


def was_in_no_cluster(tf_config: str) -> bool:
    """True if certainly neither this process is or was in the cluster of this TF_CONFIG, nor a child of it is.

    A cluster may exist for a shorter time than the agent's checks of the port need, so this reads TensorFlow's state. False if that fails,
    and in a program without TensorFlow, of whose cluster orch knows nothing.
    """
    try:
        return _TENSORFLOW in sys.modules and not (_has_cluster() or _listeners(own_port(tf_config)))
    except Exception:  # the program may have changed anything in Python, and must end as without orch
        return False


def _has_cluster() -> bool:
    """TensorFlow's runtime in this process has a cluster: of MultiWorkerMirroredStrategy, or of a coordinator."""
    module = sys.modules.get(_CONTEXT)
    context = module.context_safe() if module is not None else None
    return context is not None and (context._server_def is not None or context._collective_ops_server_def is not None)


def listens(port: int) -> bool:
    """True if this process itself listens at the port."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port)}
    return any(_link_of(name) in sockets for name in os.listdir("/proc/self/fd")) if sockets else False


def _link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # closed meanwhile
        return ""


def _listeners(port: int) -> set[str]:
    """The sockets that listen at the port, such as that of a `tf.distribute.Server`, which TensorFlow never closes: their inodes."""
    found = set()
    for path in ("/proc/self/net/tcp", *filter(os.path.exists, ["/proc/self/net/tcp6"])):  # a kernel without IPv6 has one
        with open(path) as file:
            for line in file:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found
