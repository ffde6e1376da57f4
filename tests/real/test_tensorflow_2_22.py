"""What TensorFlow 2.22 has changed and orch relies on; each test is true of 2.21 as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]
PY_FUNC = """
import gc, weakref
import tensorflow as tf
from worker.task.keras import parts

def trace():
    def step(rows, total):
        return tf.cond(rows == total, lambda: tf.constant(1), lambda: tf.numpy_function(parts._tell_of_parts, [], tf.int32, stateful=True))
    function = tf.function(step, reduce_retracing=True)
    spec = tf.TensorSpec([], tf.int64)
    return function.get_concrete_function(spec, spec), weakref.ref(function)

traced, of_function = trace()
gc.collect()
assert of_function() is None
print(int(traced(tf.constant(3, tf.int64), tf.constant(4, tf.int64))))
"""
ARRAYS = """
import gc, itertools, weakref
import tensorflow as tf
from worker.task.input import shuffle_order
from worker.task.keras import data

shuffle_order.has_several_workers = lambda strategy: True
def make():
    with data.arrays_in_one_order(None, True):
        dataset = tf.data.Dataset.range(1).repeat(1).map(lambda _: tf.random.shuffle(tf.range(50)))
    return dataset.prefetch(1), weakref.ref(dataset)
dataset, before = make()
gc.collect()
orders = [next(iter(dataset)).numpy().tolist() for _ in range(3)]
assert len(set(map(tuple, orders))) == 3, orders
print("orders differ")
"""
UNREAD = """
import tensorflow as tf

with tf.init_scope():
    sums = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[], shared_name="sums", container="")
    tf.raw_ops.AssignVariableOp(resource=sums, value=tf.zeros([], tf.float64))

@tf.function
def step(value):
    tf.raw_ops.AssignSubVariableOp(resource=sums, value=tf.constant(1.0, tf.float64))
    tf.raw_ops.AssignAddVariableOp(resource=sums, value=tf.constant(5.0, tf.float64))
    return value

step(tf.constant(1)), step(tf.constant(2))
print(float(tf.raw_ops.ReadVariableOp(resource=sums, dtype=tf.float64)))
"""
THREADS = """
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1024)
tf.config.threading.set_inter_op_parallelism_threads(1024)
print(tf.config.threading.get_intra_op_parallelism_threads())
"""
SHUFFLE = """
import pathlib
import worker
pathlib.Path("lines.txt").write_text("a\\nb\\n")
for size in (1 << 30, (1 << 30) + 1):
    try:
        worker.files("lines.txt", reader="lines", shuffle=size, seed=1)
        print("made")
    except ValueError as error:
        print(error)
"""


def printed(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_note_about_uneven_parts_runs_after_the_function_that_traced_it_is_gone(tmp_path: Path) -> None:
    assert printed(PY_FUNC, tmp_path).splitlines()[-1] == "0"


def test_the_number_of_an_epoch_is_drawn_after_the_dataset_that_traced_it_is_gone(tmp_path: Path) -> None:
    assert printed(ARRAYS, tmp_path).splitlines()[-1] == "orders differ"


def test_a_sum_that_no_operation_reads_is_counted_in_each_step(tmp_path: Path) -> None:
    assert printed(UNREAD, tmp_path).splitlines()[-1] == "8.0"


def test_the_most_threads_of_a_spec_are_not_too_many_for_tensorflow(tmp_path: Path) -> None:
    """The spec refuses more than 1,024 (tests/model/spec/test_parse.py)."""
    assert printed(THREADS, tmp_path).splitlines()[-1] == "1024"


def test_files_refuse_a_shuffle_that_tensorflow_cannot_hold(tmp_path: Path) -> None:
    made, refused = printed(SHUFFLE, tmp_path).splitlines()[-2:]
    assert made == "made"
    assert refused == "worker.files: shuffle=1073741825: TensorFlow allocates so many places at once; make it 1073741824 or fewer"
