"""Keeps TensorFlow's collectives when a program makes one MultiWorkerMirroredStrategy after the other.

TensorFlow makes the collectives of a process again for each strategy, at other moments in each worker, and each strategy counts its calls
from the same number: a worker then meets its peer in a call of the strategy before (tensorflow/python/distribute/
collective_all_reduce_strategy.py, `_initialize_multi_worker`). Here further strategies of the same cluster keep what exists, and each
has numbers of its own, in the order in which the program makes them.

A context that is reset (`context._reset_context()`) loses what exists, but TensorFlow's server of the context before keeps its port. By
hand, TensorFlow then cannot start another one. Here the port is shared, so both servers would listen, and the peers wait for an answer of
the wrong one. So the program gets an error at once.
"""

from __future__ import annotations

import os
import weakref

from .. import patches
from ..observe import membership
from ..patches.features import SWEEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GROUPS = 1000
"""How many numbers of groups a strategy has. It needs one for its devices and one for its host."""
_SECOND = (
    "{address} is in use by a server of this process, whose TensorFlow context was reset. "
    "fix: make one MultiWorkerMirroredStrategy for all trainings, or start a process for each"
)
_made: Any = weakref.WeakKeyDictionary()
"""How many strategies each context of TensorFlow has had."""
_first = iter([True])
"""True once, for the first strategy of the process: only a later one can meet the server of a context before."""


def apply_soon() -> None:
    """Keep the collectives as soon as the program has imported TensorFlow."""
    patches.after(SWEEPS, "tensorflow.python.distribute.collective_all_reduce_strategy", lambda module: _install())


def _install() -> None:
    patches.replace(SWEEPS, "CollectiveAllReduceExtended.__init__", _begin)


def _begin(real: Any, self: Any, container_strategy: Any, cluster_resolver: Any, *args: Any, **kwargs: Any) -> None:
    from tensorflow.python.eager import context

    runtime = context.context()
    is_first = next(_first, False)
    if (server := runtime._collective_ops_server_def) is None:
        if not is_first:
            _refuse_second_server(cluster_resolver)
    elif _place(cluster_resolver) == (server.cluster, server.job_name, server.task_index):
        made = _made[runtime] = _made.get(runtime, 0) + 1
        if not container_strategy._collective_key_base:
            container_strategy._collective_key_base = made * _GROUPS
        self._std_server_started = True
        self._enable_check_health = runtime.coordination_service is None  # as in TensorFlow, where it makes them
    real(self, container_strategy, cluster_resolver, *args, **kwargs)


def _place(resolver: Any) -> tuple[Any, str, int]:
    """The cluster of a resolver, and this task in it."""
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver() if resolver is None else resolver
    cluster = multi_worker_util.normalize_cluster_spec(patches.theirs(resolver.cluster_spec))
    return cluster.as_cluster_def(), resolver.task_type, resolver.task_id


def _refuse_second_server(resolver: Any) -> None:
    """Raise an error if this process has a server at its address already, of which TensorFlow's context knows nothing."""
    try:
        port = membership.own_port(os.environ.get("TF_CONFIG", ""))
    except (ValueError, LookupError, AttributeError, TypeError):  # the program has no cluster, or one of its own
        return
    if membership.listens(port):
        cluster, kind, index = _place(resolver)
        address = next((job.tasks[index] for job in cluster.job if job.name == kind), "")
        if address.endswith(f":{port}"):
            raise patches.refusal(RuntimeError(_SECOND.format(address=address)))
