"""The environment that modules are imported under, and what of it a module may look at."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from ...cpu_cores import count_cores
from ...protocol.messages import TemplateOrder
from ...task_environment import default_environment


def compose_for_template(template: TemplateOrder, host: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The environment under which the imports for these tasks are made."""
    return {**default_environment(count_cores(), template.tasks), **host, **template.env, "ORCH_RUN_ID": run_id}


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
