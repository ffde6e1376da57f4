"""What a task finds in its environment, put together on the task's own host."""

from __future__ import annotations

from collections.abc import Mapping

from ..contract import StartTasks, TaskId, TaskOrder, tf_config_text

EXEC_LIMIT = 100_000
"""Longest TF_CONFIG (bytes) that goes through exec; the kernel's limit for one string is 128 KiB (MAX_ARG_STRLEN)."""


def compose(host: Mapping[str, str], start: StartTasks, order: TaskOrder, log_dir: str, tf_config: str | None) -> dict[str, str]:
    """The environment of one task: the host's, then orch's, then the user's own for this task."""
    env = {**start.env_defaults, **host, **start.env, **order.env}
    for name in order.unset:
        env.pop(name, None)
    env["ORCH_LOG_DIR"] = log_dir
    if start.peers:
        env["no_grpc_proxy"] = _bypass(env, start.peers)
    if order.port is not None:
        env["TF_GRPC_REUSE_PORT"] = "true"
    env.pop("TF_CONFIG", None)
    if tf_config is not None and (len(tf_config) <= EXEC_LIMIT or order.program.kind == "command"):
        env["TF_CONFIG"] = tf_config
    return env


def _bypass(env: Mapping[str, str], peers: tuple[str, ...]) -> str:
    # gRPC looks at the first of these that is set (src/core/ext/filters/client_channel/http_proxy_mapper.cc), so
    # what the user excluded has to be repeated. With a proxy in the way a cluster hangs, even on localhost.
    known = env.get("no_grpc_proxy") or env.get("no_proxy") or ""
    return ",".join(dict.fromkeys([*filter(None, known.split(",")), *peers]))


def tf_config_of(start: StartTasks, order: TaskOrder) -> str | None:
    """The text of the task's TF_CONFIG, if it gets one. Raises KeyError for a cluster that was not sent."""
    if order.cluster is None:
        return None
    return tf_config_text(start.clusters[order.cluster], TaskId.parse(order.task))
