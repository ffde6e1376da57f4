"""The section `input:` and `worker.distribute`, under each strategy: what each worker is given."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.conftest import ROOT, Orch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

SETTINGS = {"auto_shard": "data", "global_batch_size": 4, "shuffle_seed": 4}
"""The section `input` of the two workers."""


def cases(strategy: Any, directory: str) -> dict[str, Any]:
    """In each of two workers: what it is given. ``[[0, 1], [4, 5]]`` are the batches of its only replica."""
    import keras
    import tensorflow as tf
    import tf_keras

    import worker

    data, distribute, of_the_spec = tf.data.Dataset, worker.distribute, os.environ["ORCH_TASK_SETTINGS"]

    def given(distributed: Any) -> list[list[int]]:
        return [[int(number) for number in strategy.experimental_local_results(batch)[0]] for batch in distributed]

    def text_files(*counts: int) -> list[str]:
        """Files with so many numbers each, one after the other."""
        names, numbers = [], itertools.count()
        for index, count in enumerate(counts):
            names.append(f"{directory}/{os.environ['ORCH_TASK']}-{len(counts)}-{index}.txt")
            Path(names[-1]).write_text("".join(f"{next(numbers)}\n" for _ in range(count)))
        return names

    def lines(*counts: int) -> Any:
        return tf.data.TextLineDataset(text_files(*counts)).map(lambda line: tf.strings.to_number(line, tf.int64))

    def with_policy(dataset: Any, name: str) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[name]
        return dataset.with_options(options)

    def where_the_spec_says(dataset: Any, **settings: Any) -> Any:
        os.environ["ORCH_TASK_SETTINGS"] = json.dumps({**json.loads(of_the_spec), "input": settings})
        try:
            return distribute(dataset)
        finally:
            os.environ["ORCH_TASK_SETTINGS"] = of_the_spec

    def batches(context: Any) -> Any:
        numbers = data.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.batch(context.get_per_replica_batch_size(4))

    def refusal(*args: Any, **kwargs: Any) -> str:
        with pytest.raises((TypeError, ValueError)) as refused:
            distribute(*args, **kwargs)
        return str(refused.value)

    def fitted(keras: Any) -> float:
        """The mean of the squares of the numbers that a model has seen in `fit`."""
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
            model.compile(keras.optimizers.SGD(0.0), loss=keras.losses.MeanSquaredError())
        dataset = lines(12).map(lambda number: (tf.cast([number], tf.float32), tf.zeros([1]))).batch(4)
        return float(model.fit(dataset, epochs=1, verbose=0).history["loss"][0])

    half = data.range(6).batch(6), data.range(6, 12).batch(6)
    hints = tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT
    prefetching = {"prefetch": -1, "fetch_to_device": False, "per_replica_buffer_size": 2, "deterministic": True}
    optional = where_the_spec_says(data.range(8), auto_shard="data", global_batch_size=4, **prefetching)
    options = optional._options
    return {
        "an unchanged script": given(strategy.experimental_distribute_dataset(lines(6, 6).batch(4))),
        "a script with a policy of its own": given(strategy.experimental_distribute_dataset(with_policy(lines(6, 6).batch(4), "FILE"))),
        "one file": given(strategy.experimental_distribute_dataset(lines(12).batch(4))),
        "worker.distribute": given(distribute(lines(6, 6))),
        "worker.distribute, in batches of its own": given(distribute(lines(6, 6), batch=6)),
        "batched already": given(distribute(lines(6, 6).batch(6).map(lambda batch: batch + 100))),
        "chosen from batches": given(distribute(data.choose_from_datasets(half, data.range(2)))),
        "elements that are batches": given(distribute(data.from_tensor_slices([[0, 1, 2, 3], [4, 5, 6, 7]]), batch=False)),
        "policy file": given(where_the_spec_says(lines(6, 6), auto_shard="file", global_batch_size=4)),
        "policy off": given(where_the_spec_says(lines(6, 6), auto_shard="off", global_batch_size=4)),
        "policy hint": given(where_the_spec_says(lines(6, 6).shard(*hints), auto_shard="hint", global_batch_size=4)),
        "no policy": given(where_the_spec_says(data.range(8), global_batch_size=4)),
        "drop_remainder": given(where_the_spec_says(data.range(10), auto_shard="data", global_batch_size=4, drop_remainder=True)),
        "a function": given(distribute(batches)),
        "input options": given(optional),
        "input options, read": (
            options.experimental_fetch_to_device,
            options.experimental_per_replica_buffer_size,
            optional._original_dataset.options().deterministic,
            type(optional._original_dataset).__name__,
        ),
        "fewer elements than replicas": refusal(data.range(8), batch=1),
        "no dataset": refusal([1, 2]),
        "fit of Keras 3": fitted(keras),
        "fit of Keras 2": fitted(tf_keras),
        "the order of files": [name.numpy().decode()[-5] for name in data.list_files(text_files(1, 1, 1, 1, 1, 1))],
    }


BY_DATA = ([[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]])
"""What the mission's document gives for DATA with two workers and global batches of 4: each reads all, and keeps its share."""
BY_FILE = ([[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]])
"""The document has ``[4] [5]`` and ``[10] [11]`` at the end: TensorFlow 2.21 makes full batches of what is left of a file."""
BY_TURNS = ([[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]])
BY_SIX = ([[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]])
OF_EIGHT = ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
GIVEN: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("an unchanged script", "one file", "worker.distribute"), BY_DATA),
    **dict.fromkeys(("a script with a policy of its own", "policy file"), BY_FILE),
    **dict.fromkeys(("policy hint", "a function"), BY_TURNS),
    **dict.fromkeys(("worker.distribute, in batches of its own", "chosen from batches"), BY_SIX),
    **dict.fromkeys(("elements that are batches", "no policy", "drop_remainder", "input options"), OF_EIGHT),
    "batched already": ([[100, 101, 102], [106, 107, 108]], [[103, 104, 105], [109, 110, 111]]),
    "policy off": ([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]],) * 2,
    "input options, read": ((False, 2, True, "_PrefetchDataset"),) * 2,
    "fewer elements than replicas": (
        "worker.distribute: a global batch of 1 for 2 replicas: some would never get an element. fix: make it 2 or more "
        "(input.global_batch_size, --global-batch-size)",
    )
    * 2,
    "no dataset": (
        "worker.distribute takes a tf.data.Dataset or a function, and not list. fix: "
        "tf.data.Dataset.from_tensor_slices makes a dataset of arrays",
    )
    * 2,
    **dict.fromkeys(("fit of Keras 3", "fit of Keras 2"), (pytest.approx(sum(number * number for number in range(12)) / 12),) * 2),
}
SAID = (
    "input: auto_shard data (experimental_distribute_dataset at {program}:",
    "input: auto_shard stays file, which the program has set, and not data (experimental_distribute_dataset at {program}:",
    "input: batches of 4 for 2 replicas; auto_shard data (worker.distribute at {program}:",
    "input: the dataset comes in batches of 6, and is not batched by 4, the global_batch_size; auto_shard data (worker.distribute at",
    "input: auto_shard does not apply to datasets from a function, which divides them itself (worker.distribute at",
)


def test_two_workers(tmp_path: Path) -> None:
    with cluster(workers=2, input=SETTINGS) as c:
        first, second = c.run(cases, str(tmp_path)).values()
        said = c.logs("worker-0").replace(f"{ROOT}/", "")
        assert ": input: " not in c.logs("worker-1")
    order = first.pop("the order of files")
    assert second.pop("the order of files") == order != sorted(order)
    assert {name: (first[name], second[name]) for name in first} == GIVEN
    assert [line for line in SAID if f": {line.format(program='tests/real/test_input.py')}" not in said] == []


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
    "batches of 4 for 2 replicas; replication_mode per_replica is only for functions, under tf.distribute.MirroredStrategy",
    "data workers make the batches, and the first worker that asks gets one",
    "a batch of 3 for 2 replicas cannot be divided evenly: their batches differ in size by one",
    "a batch of 1 for 2 replicas: 1 of them get empty batches in every step",
    "fetch_to_device false; replication_mode per_replica; prefetch 2 (worker.distribute at script.py",
)
TWICE = [[[number, number + 1]] * 2 for number in range(0, 8, 2)] + [[[8]] * 2]
"""In the mode `per_replica` the function is called for each replica."""
PARTS = "[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]"


def test_mirrored_with_a_data_service(orch: Orch, script: Callable[..., Path]) -> None:
    script(MIRRORED)
    mode = "input={global_batch_size: 4, replication_mode: per_replica, fetch_to_device: false, prefetch: 2}"
    words = ("--strategy", "mirrored", "--cpus", "2", "--set", "tasks.data_worker=1", "--set", mode)
    done = orch("up", "script.py", *words, "--timeout", "200", timeout=300, check=0)
    assert f"dataset {PARTS}" in done.out
    assert f"service {list(range(9))}" in done.out
    assert f"function {TWICE}" in done.out
    assert [said for said in SAID_OF_PARTS if f": input: {said}" not in done.out + done.err] == []
    assert "the program's own InputOptions" not in done.out + done.err
    assert "prefetch 2; prefetch 2" not in done.out + done.err


def read_by_the_only_worker(strategy: Any) -> tuple[Any, Any]:
    """In the chief: the first two batches of a dataset, and of one that a function makes."""
    import tensorflow as tf

    import worker

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    take = tf.function(lambda iterator: next(iterator))

    def given(distributed: Any) -> Any:
        iterator = iter(distributed)
        return [coordinator.schedule(take, args=(iterator,)).fetch().tolist() for _ in range(2)]

    def make(context: Any) -> Any:
        return tf.data.Dataset.range(9).batch(context.get_per_replica_batch_size(3))

    return given(worker.distribute(tf.data.Dataset.range(9))), given(worker.distribute(make))


def test_parameter_server() -> None:
    settings = {"global_batch_size": 4, "prefetch": 2, "auto_shard": "data"}
    with cluster(workers=1, ps=1, strategy="parameter_server", input=settings) as c:
        assert c.run(read_by_the_only_worker)["chief-0"] == ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2], [3, 4, 5]])
        said = c.logs("chief-0")
    assert "input: under ParameterServerStrategy each worker reads the whole dataset" in said


UNTOUCHED = """
import sys, tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
print("methods", type(strategy).experimental_distribute_dataset.__code__.co_filename.endswith("distribute_lib.py"))
print("modules", [name for name in sys.modules if name.endswith("task.input.distribute")])
"""


@pytest.mark.parametrize("words", [(), ("--set", "input={auto_shard: data, apply: false}"), ("--set", "input.files=[a.csv]")])
def test_nothing_is_touched_where_nothing_is_said(orch: Orch, script: Callable[..., Path], words: tuple[str, ...]) -> None:
    script(UNTOUCHED)
    script("1,2\n", "a.csv")
    out = orch("up", "script.py", "--strategy", "mirrored", *words, check=0).out
    assert "methods True" in out
    assert "modules []" in out


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


@pytest.mark.slow
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


def test_a_worker_that_reads_nothing_is_said_and_the_wait_for_input_is_measured(orch: Orch, script: Callable[..., Path]) -> None:
    script(SLOW)
    done = orch("up", "script.py", "-n", "2", "--timeout", "200", timeout=300, check=0)
    assert f"total {sum(range(120))}" in done.out
    said = done.out + done.err
    assert "  input: worker-1 got 0 of 60 batches: only 1 of 2 tasks had anything to read, as with 1 file for 2 workers" in said
    assert "waiting for input" not in said  # little time was lost
    tasks = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    busy, idle = (task["input"] for task in tasks)
    assert (busy["steps"], busy["batches"], busy["elements"], busy["bytes"]) == (60, [60], [120], [960])
    assert (idle["steps"], idle["batches"], idle["elements"], idle["bytes"]) == (60, [0], [0], [0])
    assert busy["seconds"] >= busy["waiting_s"] > 4.5  # 60 batches of 0.12 s, half of them in the graph, less the first second
    assert idle["waiting_s"] < busy["waiting_s"] / 2  # it waits for its peer, not for input
    assert [task["report"] for task in tasks] == [{"step": 1}, {"step": 1}]
    result = json.loads(orch("wait", "--json", check=0).out)
    assert result["input"]["worker-0"]["batches"] == [60]
    assert len(result["remarks"]) == 1
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
    assert "orch: warning: input: fit() has a dataset that repeats without end, and no steps_per_epoch" in done.out + done.err


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
    said = r"worker-2 \| orch: (warning|note): counts of the input: off from here on, because orch.s own code has failed \(TypeError: "
    assert re.search(said, lines)
    assert "atexit" not in lines
