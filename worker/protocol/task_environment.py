"""The environment of a task. Pure: the task's agent composes the environment, and `orch plan` shows it before a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping

from ..settings.task_settings import VARIABLE
from ..values.codec import to_json
from ..values.words import few
from .messages import StartTasks, TaskOrder
from .task_id import TaskId

EXEC_LIMIT = 100_000
"""The longest TF_CONFIG (bytes) in an environment for exec. The kernel's limit for one string is 128 KiB (MAX_ARG_STRLEN)."""

INTER_OP = "TF_NUM_INTEROP_THREADS"
_TOO_FEW = "1"
"""With one inter-op thread, a `ClusterCoordinator` with a dataset on each worker never ends its first step (seen on TensorFlow 2.21)."""


def compose(host: Mapping[str, str], start: StartTasks, order: TaskOrder, log_dir: str, tf_config: str | None) -> dict[str, str]:
    """The environment of one task: the variables of the host, then of orch, then of the user for this task."""
    env = {**start.env_defaults, **order.env_defaults, **host, **start.env, **order.env}
    for name in order.unset:
        env.pop(name, None)
    env["ORCH_LOG_DIR"] = log_dir
    env[VARIABLE] = json.dumps(to_json(order.settings))
    if start.peers:
        bypass_proxies(env, start.peers)
    if order.port is not None:
        env["TF_GRPC_REUSE_PORT"] = "true"
    env.pop("TF_CONFIG", None)
    if "ORCH_DATA_SERVICE" not in start.env:
        env.pop("ORCH_DATA_SERVICE", None)  # the variable of another run, from which this run was started
    if tf_config is not None and (len(tf_config) <= EXEC_LIMIT or order.program.kind == "command"):
        env["TF_CONFIG"] = tf_config
    return env


def bypass_proxies(env: MutableMapping[str, str], hosts: Iterable[str]) -> None:
    """Have gRPC connect to these hosts without a proxy.

    gRPC reads only the first of these variables that is set (src/core/ext/filters/client_channel/http_proxy_mapper.cc), so the hosts that
    the user excluded are repeated. If gRPC uses a proxy, a cluster hangs, even on localhost.
    """
    known = env.get("no_grpc_proxy") or env.get("no_proxy") or ""
    env["no_grpc_proxy"] = ",".join(dict.fromkeys([*filter(None, known.split(",")), *hosts]))


def tf_config_of(start: StartTasks, order: TaskOrder) -> str | None:
    """The text of the task's TF_CONFIG; None if the task has none. Raises KeyError for a cluster that was not sent."""
    if order.cluster is None:
        return None
    return tf_config_text(start.clusters[order.cluster], TaskId.parse(order.task))


def default_environment(cores: int | str, tasks: int, inter_op: int | None = None) -> dict[str, str]:
    """The variables of each of `tasks` tasks on a host with `cores` cores, unless the host's environment or the spec sets them.

    Threads that compute are divided among the tasks. TensorFlow's inter-op threads are not: they run functions that wait for other tasks or
    for a dataset. If there are too few, all of them wait, and the function that would end this has no thread. TensorFlow makes one for each
    core. `inter_op`: the smallest number that the strategy needs; None: TensorFlow's own number. `cores`: words for a number that is not
    known yet.
    """
    if isinstance(cores, str):
        threads, most = f"<{cores} / {tasks}>", f"<{cores}, at least {inter_op}>"
    else:
        threads, most = str(max(1, cores // max(1, tasks))), str(max(cores, inter_op or 0))
    # One order of sets of texts in all tasks of a run, on whatever host: a hash seed acts when an interpreter starts.
    found = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
    return found if inter_op is None else {**found, INTER_OP: most}


def describe_too_few_threads(start: StartTasks, envs: Mapping[str, Mapping[str, str]]) -> str:
    """A warning about tasks with so few inter-op threads that their strategy hangs; empty: there are none. `envs`: by the task's name."""
    needed = start.env_defaults.get(INTER_OP)
    names = [name for name, env in envs.items() if env.get(INTER_OP) == _TOO_FEW]
    if not names or needed is None:
        return ""
    hangs = f"{INTER_OP} is {_TOO_FEW}, with which ParameterServerStrategy is known to hang"
    return f"{few(names)}: {hangs} (unset, it would be {needed}; defaults.devices.threads.inter sets it, too)"


def tf_config_text(cluster_json: str, task: TaskId) -> str:
    """The text of ``TF_CONFIG`` for one task of a cluster already rendered as JSON.

    The cluster is rendered once for all its tasks: otherwise, ten thousand tasks would hold ten thousand copies of ten thousand addresses.
    Format: `TFConfigClusterResolver` in
    tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py.
    """
    return f'{{"cluster": {cluster_json}, "task": {{"type": "{task.type}", "index": {task.index}}}}}'
