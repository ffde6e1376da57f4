"""A `dispatcher` or `data_worker` task: a server of the tf.data service, and nothing else.

gRPC binds with SO_REUSEPORT by default, and these servers keep the default (`GrpcDataServerBase::Start` in
tensorflow/core/data/service/server_lib.cc). So they share the port with the agent, which holds the port for them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ..context import context


def serve(address: str, state: str = "") -> NoReturn:
    """Start this task's server and wait for it without end. `address`: ``host:port``, by which the other tasks reach the server.

    `state`: the directory, relative to the run's directory on this host, where a dispatcher keeps the datasets, the jobs and their readers
    for a restart; empty: it does not keep them. Raises ValueError in a process that is not a task of orch.
    """
    task = context()
    service = (task.data_service or "").removeprefix("grpc://")
    if not service or task.type not in ("dispatcher", "data_worker"):
        raise ValueError(f"{task.task} is no server of a tf.data service: start it with orch (tasks.data_worker)")
    import tensorflow as tf

    api, shared = tf.data.experimental.service, {"port": int(address.rpartition(":")[2]), "protocol": "grpc"}
    if task.type == "dispatcher":
        directory = str(_make_directory(state)) if state else None
        api.DispatchServer(api.DispatcherConfig(work_dir=directory, fault_tolerant_mode=directory is not None, **shared)).join()
    else:
        api.WorkerServer(api.WorkerConfig(dispatcher_address=service, worker_address=address, **shared)).join()
    sys.exit(0)


def _make_directory(state: str) -> Path:
    # ORCH_LOG_DIR is attempt-N/TASK in the run's directory, or in the agent's own directory on a host that does not see the run's.
    directory = Path(os.environ["ORCH_LOG_DIR"]).parent.parent / state
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
