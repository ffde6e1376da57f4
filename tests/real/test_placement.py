"""`orch placement` over runs of real TensorFlow whose placements are known: the shape of its log is not ours to define."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Orch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

Script = Callable[..., Path]

PLACED = """
    import tensorflow as tf
    import keras

    tf.debugging.set_log_device_placement(True)
    a = tf.constant([[1.0, 2.0]])
    for _ in range(3):
        with tf.device("/CPU:1"):
            tf.matmul(a, a, transpose_b=True)
    with tf.device("/CPU:1"):
        layer = keras.layers.Dense(2, name="near")
        layer.build((None, 2))
        v = tf.Variable([[3.0, 4.0]])

    @tf.function
    def step(x):
        with tf.device("/CPU:0"):
            return tf.matmul(layer(x), v, transpose_b=True, name="far")

    step(a)
    print("the end", flush=True)
    tf.config.set_soft_device_placement(False)
    with tf.device("/CPU:2"):
        tf.add(a, a)
"""


@pytest.fixture
def found(orch: Orch, script: Script) -> dict[str, Any]:
    script(PLACED, "placed.py")
    done = orch("up", "placed.py", "--strategy", "none", "--cpus", "2", timeout=250, check=1)
    assert "orch: --cpus 3 would give this task CPU:2" in done.err
    assert "the end" in done.out
    assert "device:CPU:0" not in done.out, "placements stay off the console"
    assert "Executing op" not in done.err
    assert "of TensorFlow's own messages and of tracebacks folded" in done.err
    read: dict[str, Any] = json.loads(orch("placement", "--json", check=0).out)
    return read


@pytest.mark.slow
def test_a_real_run_s_operations_and_variables(found: dict[str, Any], orch: Orch) -> None:
    counts = {(row["op"], row["device"]): (row["executed"], row["placed"]) for row in found["operations"]}
    assert counts["MatMul", "CPU:1"][0] == 3
    assert counts["step()", "CPU:0"] == (1, 0)
    assert counts["VarHandleOp", "CPU:1"][0] == 3, "the layer's two variables and our own"
    used = {(row["op"], row["node"], row["device"], row["variable_device"], row["evidence"]) for row in found["variable_reads"]}
    assert ("MatMul", "far", "CPU:0", "CPU:1", "name") in used
    assert used & {("MatMul", node, "CPU:0", "CPU:1", "scope") for node in ("near_1", "near")}, "TensorFlow 2.22 has another number"
    shown = orch("placement", "--op", "MatMul", check=0).out
    assert shown.startswith("OPERATION  DEVICE  RUN  PLACED  TASKS\nMatMul     CPU:1     3       1  worker-0\n")
