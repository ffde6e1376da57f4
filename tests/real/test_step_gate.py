"""The gate of a step (worker/task/snapshots/step_gate.py) in graphs of TensorFlow, without a cluster."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT
from worker.checkpoint_files import step_records

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

GATE = """
import struct, sys
import tensorflow as tf
from worker.task.checkpoints.variables import NamedVariable
from worker.task.snapshots import step_gate
from worker.task.snapshots.values import Values

weight, total, seen = tf.Variable(1.0), tf.Variable(0.0), tf.Variable(0.0)
others = {  # each bit of these stays: as a number of another type, the first one is no number
    "seed": tf.Variable([0x7F800001, 0xFFFFFFFF], dtype=tf.uint32), "count": tf.Variable(-7), "mean": tf.Variable([[1.5, 2.5]]),
    "wide": tf.Variable([2**40], dtype=tf.int64), "half": tf.Variable([0.5], dtype=tf.float16),
}
own = {"total": total, "seen": seen, **others}
named = [NamedVariable("weight", weight, False), *(NamedVariable(name, one, True) for name, one in own.items())]
path = sys.argv[1]

def begin(step=0):
    return step_gate.StepGate(named, path, step)

def traced(gate, metric, after=lambda: None):
    @tf.function
    def step():
        (grad,) = gate.open_door([weight * 0.5])
        with gate.bracket([grad]):
            weight.assign_sub(grad)
        metric(grad)
        gate.end_of_replica()
        after()
    step()
    return step

def why(metric, after=lambda: None):
    step_gate._steps.clear()  # those before have the same variables
    gate = begin()
    step = traced(gate, metric, after)
    gate.prove()
    gate.close()
    return gate.why

late = " changes after the gradients of the workers are added"
"""

ORDER = (
    GATE
    + """
# What the metric gets is known before the gradients are given away.
assert why(lambda grad: total.assign_add(2.0)) == ""
assert why(lambda grad: total.assign_add(seen.assign_add(1.0))) == ""
# It comes after the sums by an edge that exists; or by those that TensorFlow adds at the end of the trace.
assert why(lambda grad: total.assign_add(grad)) == "total" + late
assert why(lambda grad: total.assign_add(weight)) == "total" + late
assert why(lambda grad: seen.assign(tf.cond(weight > 0.0, lambda: 1.0, lambda: 2.0))) == "seen" + late
kept = tf.Variable(0.0)

def through_another(grad):
    kept.assign(weight)
    total.assign_add(kept)

def write_after_read(grad):
    with tf.control_dependencies([grad]):
        kept.assign_add(total)
    total.assign_add(1.0)

def through_effects(grad):
    with tf.control_dependencies([grad]):
        tf.py_function(lambda: 1.0, [], tf.float32)
    total.assign_add(tf.py_function(lambda: 1.0, [], tf.float32))

for metric in (through_another, write_after_read, through_effects):
    assert why(metric) == "total" + late, metric

def reads_only(grad):  # after its last change, it may be read by what comes late
    total.assign_add(1.0)
    kept.assign_add(weight + total)

assert why(reads_only) == ""
# What the same graph changes after the record is not in it.
assert why(lambda grad: total.assign_add(2.0), lambda: total.assign_add(1.0)) == "total changes after the step of the replicas"
"""
)

CHANGES = (
    GATE
    + """
gate = begin()
step = traced(gate, lambda grad: total.assign_add(2.0))
gate.prove()
assert not gate.why, gate.why
assert not gate.ends(1)
assert bytes(gate.record_of(1).tensors["total"].data) == struct.pack("<f", 2.0)
for name, one in others.items():
    kept = gate.record_of(1).tensors[name]
    assert (bytes(kept.data), kept.shape) == (one.numpy().tobytes(), tuple(one.shape)), name
total.assign(0.0)  # between two steps: the next record has it
step()
assert not gate.ends(2)
step()
seen.assign(5.0)  # between the graph and the end of its step
assert gate.ends(3)
assert gate.record_of(3) is None
assert bytes(gate.record_of(2).tensors["total"].data) == struct.pack("<f", 2.0)
step()
assert not gate.ends(4)
assert not gate.why
gate.close()
# A snapshot gives the memory of a variable back before the next step, which therefore makes no copy of it.
row = tf.Variable([1.0, 2.0])
values = Values([NamedVariable("row", row, False)], holds=True)
add = tf.function(lambda: row.assign_add([1.0, 1.0]))
place = lambda: values._parts[0][1]().ctypes.data
before, held = place(), values.read({})
del held
add()
assert place() == before
held = values.read({})
add()
assert place() != before, "what is held would be copied"
# A second training with the same graph, which was not refused; then one that was.
again = begin(4)
assert (again.has_traced, again.why) == (True, "")
again.close()
gate = begin(4)
step = traced(gate, lambda grad: total.assign_add(grad))
gate.close()
assert begin(5).why == "total" + late
"""
)

ENDS = (
    GATE
    + """
from tensorflow.python.eager import context
gate = begin()
step = traced(gate, lambda grad: total.assign_add(2.0))
step()
context._reset_context()  # frees all variables, as the end of the interpreter does
kept = [tf.fill([size], 9.0) for size in range(1, 2000)]
"""
)


@pytest.mark.parametrize("program", [ORDER, CHANGES, ENDS], ids=["order", "changes", "ends"])
def test_the_gate(tmp_path: Path, program: str) -> None:
    """`order`: a record that cannot come before the sums is refused, and the step runs. `changes`: what the program changes after a record
    makes it no record; and a graph that was refused stays so in the next training of the process. `ends`: what comes after the program
    changes no record: TensorFlow's memory is never that of the file."""
    (tmp_path / "gate.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "records").touch()
    command = [sys.executable, str(tmp_path / "gate.py"), str(tmp_path / "records")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if program is ENDS:
        records = {one.step: struct.unpack("<f", one.tensors["total"].data) for one in step_records.read(str(tmp_path / "records"))}
        assert records == {1: (2.0,), 2: (4.0,)}
