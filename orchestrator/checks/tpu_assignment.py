"""Runs TensorFlow in another process, to get its device assignment on a TPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from worker.protocol import messages
from worker.values.codec import ContractError, from_json

from ..model.cause.exit_status import describe_answer
from ..model.tpu_topology import Mesh
from .tpu_report import TpuReplicas

WAIT_S = 120.0
_PROGRAM = Path(messages.__file__).parents[1] / "task" / "strategy" / "assign_devices.py"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TPU_SKIP_MDS_QUERY": "1", "TPU_LOAD_LIBRARY": "0"}


def request_assignment(python: str, mesh: Mesh, shape: tuple[int, ...], replicas: int) -> TpuReplicas:
    """`DeviceAssignment.build` on a `Topology` of this mesh, with the TensorFlow of the interpreter `python`."""
    request = {"mesh": mesh.shape, "coordinates": mesh.coordinates(), "shape": shape, "replicas": replicas}
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": WAIT_S, "check": False}
    try:
        done = subprocess.run([python, str(_PROGRAM)], input=json.dumps(request), env={**os.environ, **_QUIET}, **options)
    except subprocess.TimeoutExpired:
        return TpuReplicas(problem=f"{python} was asked, and TensorFlow has not answered after {WAIT_S:g} s")
    except OSError as error:
        return TpuReplicas(problem=f"{python} cannot be started: {error.strerror or error}")
    try:
        return from_json(TpuReplicas, json.loads(done.stdout))
    except (ValueError, ContractError):
        return TpuReplicas(problem=f"{python} was asked: {describe_answer(done.stderr, done.returncode, '')}")
