"""The section `input:` and `worker.distribute`, under each strategy: what each worker is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.conftest import ROOT, Orch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

PROGRAM = "tests/programs/input_api.py"
SHARED = ([[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]])
"""What the mission's document gives for DATA with two workers and global batches of 4: each reads all, and keeps its share."""
BY_FILE = ([[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]])
"""The document has ``[4] [5]`` and ``[10] [11]`` at the end: TensorFlow 2.21 makes full batches of what is left of a file."""
ALL = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
FIT = round(sum(number * number for number in range(12)) / 12, 3)
GIVEN: dict[str, tuple[Any, Any]] = {
    "an_unchanged_script": SHARED,
    "a_script_with_a_policy_of_its_own": BY_FILE,
    "one_file": SHARED,
    "worker_distribute": SHARED,
    "worker_distribute_in_batches_of_its_own": ([[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]),
    "batched_already": ([[100, 101, 102], [106, 107, 108]], [[103, 104, 105], [109, 110, 111]]),
    "chosen_from_batches": ([[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]),
    "elements_that_are_batches": ([[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    "policy_file": BY_FILE,
    "policy_off": (ALL, ALL),
    "policy_hint": ([[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]),
    "no_policy": ([[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    "drop_remainder": ([[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    "a_function": ([[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]),
    "input_options": (
        [False, 2, True, "_PrefetchDataset", [[0, 1], [4, 5]]],
        [False, 2, True, "_PrefetchDataset", [[2, 3], [6, 7]]],
    ),
    "fewer_elements_than_replicas": (
        "worker.distribute: a global batch of 1 for 2 replicas: some of them would never get an element; make it 2 or more "
        "(input.global_batch_size, --global-batch-size)",
    )
    * 2,
    "no_dataset": (
        "worker.distribute takes a tf.data.Dataset or a function of an InputContext, and not list; "
        "tf.data.Dataset.from_tensor_slices makes a dataset of arrays",
    )
    * 2,
    "keras_3_fit": (FIT, FIT),
    "keras_2_fit": (FIT, FIT),
}
"""What worker-0 and worker-1 are given, by case."""
SAID = (
    "input: auto_shard data (experimental_distribute_dataset at {program}:",
    "input: auto_shard stays file, which the program has set, and not data (experimental_distribute_dataset at {program}:",
    "input: datasets of this program are divided in different ways: data at {program}:",
    "input: batches of 4 for 2 replicas, auto_shard data (worker.distribute at {program}:",
    "input: auto_shard data; the dataset comes in batches of 6, and is not batched by 4, the global_batch_size (worker.distribute at",
    "input: auto_shard does not apply to datasets from a function, which divides them itself (worker.distribute at",
)


def run_cases(directory: str) -> dict[str, Any]:
    """In a task."""
    from tests.programs import input_api

    return input_api.run(directory)


def test_two_workers(tmp_path: Path) -> None:
    settings = {"auto_shard": "data", "global_batch_size": 4, "shuffle_seed": 4}
    with cluster(workers=2, input=settings, timeout=400) as c:
        first, second = c.run(run_cases, str(tmp_path)).values()
        said = c.logs("worker-0").replace(f"{ROOT}/", "")
        assert "orch: input" not in c.logs("worker-1")
    orders = first.pop("the_order_of_files"), second.pop("the_order_of_files")
    assert orders[0] == orders[1] != sorted(orders[0])
    assert {name: (first[name], second[name]) for name in first} == GIVEN
    assert [line for line in SAID if f"orch: {line.format(program=PROGRAM)}" not in said] == []


# --- one process -----------------------------------------------------------------------------------

MIRRORED = """
import sys, worker, tensorflow as tf
strategy = worker.strategy()

def given(distributed):
    batches = [strategy.experimental_local_results(batch) for batch in distributed]
    return [[[int(number) for number in part] for part in parts] for parts in batches]

numbers = tf.data.Dataset.range(9)
print("dataset", given(worker.distribute(numbers, data_service=False)))
print("service", sorted(number for parts in given(worker.distribute(numbers)) for part in parts for number in part))
worker.distribute(numbers.batch(3), data_service=False)
worker.distribute(numbers.batch(1), data_service=False)
print("function", given(worker.distribute(lambda context: numbers.batch(context.get_per_replica_batch_size(4)))))
"""
SAID_OF_PARTS = (
    "fetch_to_device false, batches of 4 for 2 replicas; replication_mode per_replica is only for functions, under tf.distribute.Mirrored",
    "the data workers of the tf.data service make the batches, which go to whichever worker asks first",
    "a batch of 3 for 2 replicas cannot be divided evenly: their batches differ in size by one",
    "a batch of 1 for 2 replicas: 1 of them get empty batches in every step",
    "fetch_to_device false, replication_mode per_replica (worker.distribute at script.py",
)
TWICE = [[[number, number + 1]] * 2 for number in range(0, 8, 2)] + [[[8]] * 2]
"""In the mode `per_replica` the function is called for each replica."""
PARTS = "[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]"


def test_mirrored_with_a_data_service(orch: Orch, script: Callable[..., Path]) -> None:
    script(MIRRORED)
    mode = "input={global_batch_size: 4, replication_mode: per_replica, fetch_to_device: false}"
    words = ("--strategy", "mirrored", "--cpus", "2", "--data-workers", "1", "--set", mode)
    done = orch("up", "script.py", *words, "--timeout", "200", timeout=300, check=0)
    assert f"dataset {PARTS}" in done.out
    assert f"service {list(range(9))}" in done.out
    assert f"function {TWICE}" in done.out
    assert [said for said in SAID_OF_PARTS if f"orch: input: {said}" not in done.out + done.err] == []
    assert "the program's own InputOptions" not in done.out + done.err


PARAMETER_SERVER = """
import worker, tensorflow as tf
strategy = worker.strategy()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

@tf.function
def take(iterator):
    return next(iterator)

def given(distributed, steps):
    iterator = iter(distributed)
    return [coordinator.schedule(take, args=(iterator,)).fetch().tolist() for _ in range(steps)]

numbers = tf.data.Dataset.range(9)
print("dataset", given(worker.distribute(numbers), 2))
def make(context):
    return tf.data.Dataset.range(9).batch(context.get_per_replica_batch_size(3))

print("function", given(worker.distribute(make), 2))
"""


def test_parameter_server(orch: Orch, script: Callable[..., Path]) -> None:
    script(PARAMETER_SERVER)
    words = ("--ps", "1", "-n", "1", "--global-batch-size", "4", "--set", "input.prefetch=2", "--auto-shard", "data")
    done = orch("up", "script.py", *words, "--timeout", "200", timeout=300, check=0)
    said = done.out + done.err
    assert "dataset [[0, 1, 2, 3], [4, 5, 6, 7]]" in said
    assert "function [[0, 1, 2], [3, 4, 5]]" in said
    assert "input.auto_shard: data has no effect under strategy parameter_server: each worker reads the whole dataset" in said
    assert "input: under ParameterServerStrategy the dataset is not divided: each worker reads the whole dataset" in said


UNTOUCHED = """
import sys, tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
print("methods", type(strategy).experimental_distribute_dataset.__code__.co_filename.endswith("distribute_lib.py"))
print("modules", [name for name in sys.modules if "task.input.input_policy" in name or "task.input.distribute" in name])
"""


@pytest.mark.parametrize("words", [(), ("--set", "input={auto_shard: data, apply: false}"), ("--set", "input.files=[a.csv]")])
def test_nothing_is_touched_where_nothing_is_said(orch: Orch, script: Callable[..., Path], words: tuple[str, ...]) -> None:
    script(UNTOUCHED)
    script("1,2\n", "a.csv")
    out = orch("up", "script.py", "--strategy", "mirrored", *words, check=0).out
    assert "methods True" in out
    assert ("modules []" in out) is (not words)


BY_HAND = """
import worker, tensorflow as tf
assert worker.strategy() is tf.distribute.get_strategy()
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
numbers = tf.data.Dataset.range(4)
print([batch.numpy().tolist() for batch in worker.distribute(numbers, batch=3)])
with strategy.scope():
    print([batch.numpy().tolist() for batch in worker.distribute(numbers.batch(3))])
print([number.numpy().tolist() for number in worker.distribute(numbers)])
one = tf.distribute.OneDeviceStrategy("CPU:0")
print([batch.numpy().tolist() for batch in worker.distribute(numbers, batch=3, strategy=one)])

def make(context):
    worker.distribute(numbers)  # a call inside of a call
    return numbers.batch(context.get_per_replica_batch_size(2))

print([batch.numpy().tolist() for batch in worker.distribute(make, strategy=one)])
"""


def test_by_hand(script: Callable[..., Path]) -> None:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, script(BY_HAND)], env=env, capture_output=True, text=True, timeout=200)
    of_three = "[[0, 1, 2], [3]]"
    assert done.stdout.splitlines() == [of_three, of_three, "[0, 1, 2, 3]", of_three, "[[0, 1], [2, 3]]"], done.stderr


# --- what was read ---------------------------------------------------------------------------------

SLOW = """
import time
import numpy as np, tensorflow as tf, worker
strategy = worker.strategy()

def slow(number):
    time.sleep(0.12)
    return number

def make(context):
    count = 120 if context.input_pipeline_id == 0 else 0
    numbers = tf.data.Dataset.range(count).batch(2)
    return numbers.map(lambda batch: tf.ensure_shape(tf.py_function(slow, [batch], tf.int64), [None]))

worker.report(step=1)
batches = iter(worker.distribute(make))

@tf.function
def step(iterator):
    return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)

total = sum(int(step(batches)) for _ in range(30))  # inside a tf.function
for batch in batches:  # and in Python
    total += int(strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)), axis=None))
print("total", total)
"""


def test_a_worker_that_reads_nothing_and_a_run_that_waits_for_input_are_said(orch: Orch, script: Callable[..., Path]) -> None:
    script(SLOW)
    done = orch("up", "script.py", "-n", "2", "--timeout", "200", timeout=300, check=0)
    assert f"total {sum(range(120))}" in done.out
    said = done.out + done.err
    assert "  input: worker-1 got 0 of 60 batches: only 1 of 2 tasks had anything to read, as with 1 file for 2 workers" in said
    assert "% of the step is waiting for input (worker-" in said
    tasks = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    busy, idle = (task["input"] for task in tasks)
    assert (busy["steps"], busy["batches"], busy["elements"], busy["bytes"]) == (60, [60], [120], [960])
    assert (idle["steps"], idle["batches"], idle["elements"], idle["bytes"]) == (60, [0], [0], [0])
    assert busy["seconds"] >= busy["waiting_s"] > 0.5 * busy["seconds"]
    assert [task["report"] for task in tasks] == [{"step": 1}, {"step": 1}]
    result = json.loads(orch("wait", "--json", check=0).out)
    assert result["input"]["worker-0"]["batches"] == [60]
    assert len(result["remarks"]) == 2
    assert "input: 60 batches, 120 elements, " in orch("ps", check=0).out


FIT_ON_TWO = """
import sys
import numpy as np, tensorflow as tf
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for name in ("keras", "tf_keras"):
    keras = __import__(name)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.zeros((40, 4), "float32"), np.zeros((40, 1), "float32"), batch_size=4, epochs=2, verbose=0)
model = None
endless = tf.data.Dataset.from_tensors((tf.zeros([2, 4]), tf.zeros([2, 1]))).repeat()
import keras

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        sys.exit(0)

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(endless, verbose=0, callbacks=[Stop()])
"""


def test_fit_of_both_kerases_is_counted_without_a_section(orch: Orch, script: Callable[..., Path]) -> None:
    script(FIT_ON_TWO)
    done = orch("up", "script.py", "--strategy", "mirrored", "--cpus", "2", check=0)
    (task,) = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    found = task["input"]
    assert found["steps"] in range(40, 44)  # Keras takes a batch to build a model
    assert found["batches"] == [found["steps"]] * 2
    assert found["elements"] == [2 * found["steps"]] * 2
    assert found["bytes"] == [2 * found["steps"] * 5 * 4] * 2
    assert "orch: input: fit() has a dataset that repeats without end, and no steps_per_epoch" in done.out + done.err


UNCOUNTED = """
import os, sys, tensorflow as tf
TASK = os.environ["ORCH_TASK"]
if TASK == "worker-0":
    tf.compat.v1.disable_v2_behavior()
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
numbers = tf.data.Dataset.range(4).batch(2)
batches = strategy.experimental_distribute_dataset(numbers)

@tf.function
def step(iterator):
    return next(iterator)

if TASK == "worker-0":  # TensorFlow 1
    iterator = batches.make_initializable_iterator()
    total = tf.reduce_sum(strategy.experimental_local_results(iterator.get_next())[0])
    with tf.compat.v1.Session() as session:
        session.run(iterator.initializer)
        print("sums", [int(session.run(total)) for _ in range(2)])
elif TASK == "worker-1":  # at the end operations make graphs
    print("sum", int(tf.reduce_sum(step(iter(batches)))))
    tf.compat.v1.disable_eager_execution()
else:  # our counting fails, and then the program
    from tensorflow.python.distribute import input_lib
    sys.modules[type(input_lib._orch_counter).__module__]._measure = None
    os.environ["ORCH_TASK"] = "worker-0"  # whose lines are said
    print("sums", int(tf.reduce_sum(step(iter(batches)))), [int(tf.reduce_sum(batch)) for batch in batches])
    odd = numbers.map(lambda number: tf.debugging.check_numerics(1.0 / tf.cast(2 - number, tf.float32), "the program's own"))
    try:
        [step(iterator) for iterator in [iter(strategy.experimental_distribute_dataset(odd))] for _ in range(2)]
    except tf.errors.InvalidArgumentError as error:
        print("its own error:", "the program's own" in str(error))
"""


def test_counting_costs_no_program_its_life(orch: Orch, script: Callable[..., Path]) -> None:
    script(UNCOUNTED)
    done = orch("up", "script.py", "-n", "3", "--set", "input.prefetch=2", timeout=300, check=0)
    lines = done.out + done.err
    assert "worker-0 | sums [1, 5]" in lines
    assert "worker-1 | sum 1" in lines
    assert "worker-2 | sums 1 [1, 5]" in lines
    assert "worker-2 | its own error: True" in lines
    assert "worker-2 | orch: input: orch no longer counts what is read, because the counting failed: TypeError: " in lines
    assert "atexit" not in lines
