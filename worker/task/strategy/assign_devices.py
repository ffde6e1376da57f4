"""TensorFlow's own device assignment, for ``orch tpu``: a request as JSON on stdin, an answer as JSON on stdout.

    python assign_devices.py < {"mesh": [2, 2, 1, 2], "coordinates": [...], "shape": [1, 1, 1, 2], "replicas": 4}

The answer has the fields of `orchestrator.checks.tpu_report.TpuReplicas`. The file imports nothing of orch, because the tasks'
interpreter runs it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. Imports TensorFlow."""
    try:
        import tensorflow as tf
    except ImportError:
        return {"problem": "TensorFlow, which makes it, is not installed for this interpreter; the sizes above need none"}
    try:
        topology = tf.tpu.experimental.Topology(mesh_shape=request["mesh"], device_coordinates=request["coordinates"])
        found = tf.tpu.experimental.DeviceAssignment.build(topology, computation_shape=request["shape"], num_replicas=request["replicas"])
        cores = found.num_cores_per_replica
        names = [[found.tpu_device(replica, core) for core in range(cores)] for replica in range(found.num_replicas)]
        return {"places": found.core_assignment.tolist(), "names": names, "version": tf.__version__}
    except (ValueError, AssertionError) as error:
        return {"problem": f"TensorFlow says: {str(error) or type(error).__name__}"}


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)  # output of imports goes to stderr
    sys.path[:1] = []  # this file's directory: its modules must not replace others
    os.write(out, json.dumps(answer(json.load(sys.stdin))).encode())
