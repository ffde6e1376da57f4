"""The environment under which a template imports, and the part of an environment that an import may read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from ...machine.cpu_cores import count_cores
from ...protocol.messages import TemplateOrder
from ...protocol.task_environment import default_environment


def compose_for_template(template: TemplateOrder, host: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The environment of the template for these tasks."""
    return {**default_environment(count_cores(), template.tasks), **host, **template.env, "ORCH_RUN_ID": run_id}


_FROZEN = (
    *("ABSL_", "AUTOGRAPH_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GLIBC_", "GOTO_", "GRPC_", "KERAS_", "KMP_", "LC_", "LD_", "LIBTPU_"),
    *("MALLOC_", "MKL_", "NPY_", "NUMEXPR_", "NUMPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "TF_", "TPU_", "XLA_"),
)
# The variables that name the temporary directory are read once, by TensorFlow's import; the time zone is read when the interpreter starts.
_FROZEN_NAMES = {"HOME", "LANG", "LANGUAGE", "TEMP", "TMP", "TMPDIR", "TZ", "VIRTUAL_ENV"}
# TensorFlow reads these when a server or a thread pool is made, not at import (seen on TensorFlow 2.21); CUDA's when a GPU is first used.
_READ_LATE = {
    "TF_CONFIG",
    "TF_GRPC_REUSE_PORT",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_DETERMINISTIC_OPS",  # read when the first operation needs it (tensorflow/core/util/determinism.cc)
}
_KNOWN_MODULES = {"keras", "numpy", "tensorflow", "tf_keras"} | sys.stdlib_module_names
# The variables that orch sets for each task.
_SET_BY_ORCH = {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "no_grpc_proxy"}


def frozen(env: Mapping[str, str], modules: Iterable[str] = ()) -> frozenset[tuple[str, str]]:
    """The variables of an environment that importing `modules` may read, with their values.

    A later change of one of them has no effect in a process that has imported: ``TF_CPP_MIN_LOG_LEVEL``, for one, is read once. Which
    variables modules other than TensorFlow, Keras, NumPy and the standard library read is not known; if there are such modules, all
    variables count that orch does not set.
    """
    if all(module.partition(".")[0] in _KNOWN_MODULES for module in modules):
        names = {name for name in env if name.startswith(_FROZEN) or name in _FROZEN_NAMES}
    else:
        names = {name for name in env if not name.startswith("ORCH_") and name not in _SET_BY_ORCH}
    return frozenset((name, env[name]) for name in names - _READ_LATE)
