"""The servers that are the only program of a task: TensorFlow's, for a `worker` or `ps` task of a ParameterServerStrategy cluster; one of
the tf.data service, for a `dispatcher` or `data_worker` task; and TensorBoard.

gRPC binds with SO_REUSEPORT by default, and the servers of the tf.data service keep the default (`GrpcDataServerBase::Start` in
tensorflow/core/data/service/server_lib.cc). So they share the port with the agent, which holds the port for them. TensorBoard binds with
it here.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
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


def serve_data(address: str, state: str = "") -> NoReturn:
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


def serve_tensorboard(directory: str, port: str) -> NoReturn:
    """Serve `directory` without end, on loopback: who reaches TensorBoard reads all. Exits with 1 where it is not installed."""
    try:
        from tensorboard import default, program
    except ImportError as error:
        # TensorBoard before 2.21 imports pkg_resources, which setuptools 82 and newer do not have (tensorboard#7064).
        package = "'setuptools<82'" if error.name == "pkg_resources" else "tensorboard"
        print(f"orch: warning: TensorBoard cannot be imported ({error}). fix: {sys.executable} -m pip install {package}", file=sys.stderr)
        sys.exit(1)

    class Server(program.WerkzeugServer):  # type: ignore[misc]
        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            super().server_bind()

    board: Any = program.TensorBoard(default.get_plugins(), server_class=Server)
    # Without its own process for reading, which would listen on another port.
    board.configure(argv=["tensorboard", "--logdir", directory, "--host", "127.0.0.1", "--port", port, "--load_fast", "false"])
    board.launch()
    while True:  # SIGTERM ends this
        time.sleep(3600)
