"""What a task finds in its environment, put together on the task's own host."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from ..contract import StartTasks, TaskId, TaskOrder, TemplateOrder, default_environment, tf_config_text
from . import look

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
    if "ORCH_DATA_SERVICE" not in start.env:
        env.pop("ORCH_DATA_SERVICE", None)  # another run's, which this one was started from
    if tf_config is not None and (len(tf_config) <= EXEC_LIMIT or order.program.kind == "command"):
        env["TF_CONFIG"] = tf_config
    return env


def compose_for_template(template: TemplateOrder, host: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The environment under which the imports for these tasks are made."""
    return {**default_environment(look.count_cores(), template.tasks), **host, **template.env, "ORCH_RUN_ID": run_id}


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


_FROZEN = (
    *("ABSL_", "AUTOGRAPH_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_", "GOTO_", "GRPC_", "KERAS_", "KMP_", "LC_", "LD_", "LIBTPU_"),
    *("MALLOC_", "MKL_", "NPY_", "NUMEXPR_", "NUMPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "TF_", "TPU_", "XLA_"),
)
# The names of the temporary directory are looked at once, and TensorFlow's import does; a time zone when the interpreter starts.
_FROZEN_NAMES = {"HOME", "LANG", "LANGUAGE", "TEMP", "TMP", "TMPDIR", "TZ", "VIRTUAL_ENV"}
# Looked at when a server or a pool is made, not at import (seen on TensorFlow 2.21); CUDA's when a GPU is first used.
_READ_LATE = {
    "TF_CONFIG",
    "TF_GRPC_REUSE_PORT",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_DETERMINISTIC_OPS",  # when the first operation asks for it (tensorflow/core/util/determinism.cc)
}
_KNOWN_MODULES = {"keras", "numpy", "tensorflow", "tf_keras"} | sys.stdlib_module_names
# What orch itself tells each task.
_TOLD_NAMES = {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "no_grpc_proxy"}


def frozen(env: Mapping[str, str], modules: Iterable[str] = ()) -> frozenset[tuple[str, str]]:
    """The part of an environment that importing `modules` may look at. A process that has imported TensorFlow under another one
    stays as it is: ``TF_CPP_MIN_LOG_LEVEL``, for one, is read once and never again.

    What other modules look at nobody knows, so with one of those it is all that orch does not set by itself.
    """
    all_known = all(module.partition(".")[0] in _KNOWN_MODULES for module in modules)
    counts = _is_frozen if all_known else _is_the_users
    return frozenset((name, value) for name, value in env.items() if name not in _READ_LATE and counts(name))


def _is_frozen(name: str) -> bool:
    return name.startswith(_FROZEN) or name in _FROZEN_NAMES


def _is_the_users(name: str) -> bool:
    return not name.startswith("ORCH_") and name not in _TOLD_NAMES
