"""A `dispatcher` or `data_worker` task: a server of the tf.data service, and nothing else.

gRPC binds with SO_REUSEPORT unless it is told not to, and nobody tells these servers (`GrpcDataServerBase::Start` in
tensorflow/core/data/service/server_lib.cc), so they share the port that is held for them without being asked to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ..context import context


def serve(address: str, state: str = "") -> NoReturn:
    """Start this task's server and wait on it for ever. `address`: ``host:port``, by which the others reach it.

    `state`: where a dispatcher keeps what it must know when it is started again (the datasets, the jobs, who reads what), relative
    to the run's directory on this host; empty: it is not. Raises ValueError if this is no task of orch's.
    """
    task = context()
    service = (task.data_service or "").removeprefix("grpc://")
    if not service or task.type not in ("dispatcher", "data_worker"):
        raise ValueError(f"{task.task} is no server of a tf.data service: start it with orch (--data-workers)")
    import tensorflow as tf

    port = int(address.rpartition(":")[2])
    if task.type == "dispatcher":
        directory = str(_make_directory(state)) if state else None
        config = tf.data.experimental.service.DispatcherConfig(
            port=port, protocol="grpc", work_dir=directory, fault_tolerant_mode=directory is not None
        )
        tf.data.experimental.service.DispatchServer(config).join()
    else:
        config = tf.data.experimental.service.WorkerConfig(dispatcher_address=service, worker_address=address, port=port, protocol="grpc")
        tf.data.experimental.service.WorkerServer(config).join()
    sys.exit(0)


def _make_directory(state: str) -> Path:
    # ORCH_LOG_DIR is attempt-N/TASK in the run's directory, or in the agent's own where the host does not see that.
    directory = Path(os.environ["ORCH_LOG_DIR"]).parent.parent / state
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
