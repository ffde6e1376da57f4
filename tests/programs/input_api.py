"""What each worker is given, case by case: `run` gives what the cases gave.

Runs in each of two workers, whose spec says ``input: {auto_shard: data, global_batch_size: 4}``. An element is a number, so that a case
can be read: ``[[0, 1], [4, 5]]`` are the batches of this worker's only replica.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import worker

PLACE = Path()
"""A directory; `run` sets it."""
CASES: dict[str, Callable[[], Any]] = {}
strategy = worker.strategy()
SPEC = os.environ["ORCH_TASK_SETTINGS"]
DATA = tf.data.Dataset


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def given(distributed: Any) -> list[list[int]]:
    """The batches of this worker."""
    return [[int(number) for number in strategy.experimental_local_results(batch)[0]] for batch in distributed]


def text_files(*counts: int) -> list[str]:
    """Files with so many numbers each, one after the other."""
    names, first = [], 0
    for index, count in enumerate(counts):
        name = PLACE / f"{os.environ['ORCH_TASK']}-{len(counts)}-{index}.txt"
        name.write_text("".join(f"{number}\n" for number in range(first, first + count)))
        names.append(str(name))
        first += count
    return names


def lines(*counts: int) -> Any:
    return tf.data.TextLineDataset(text_files(*counts)).map(lambda line: tf.strings.to_number(line, tf.int64))


def with_policy(dataset: Any, name: str) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[name]
    return dataset.with_options(options)


def spec_says(**settings: Any) -> None:
    """Until the next case, `worker.distribute` finds these settings."""
    os.environ["ORCH_TASK_SETTINGS"] = json.dumps({**json.loads(SPEC), "input": settings})


@case
def an_unchanged_script() -> Any:
    return given(strategy.experimental_distribute_dataset(lines(6, 6).batch(4)))


@case
def a_script_with_a_policy_of_its_own() -> Any:
    return given(strategy.experimental_distribute_dataset(with_policy(lines(6, 6).batch(4), "FILE")))


@case
def one_file() -> Any:
    return given(strategy.experimental_distribute_dataset(lines(12).batch(4)))


@case
def worker_distribute() -> Any:
    return given(worker.distribute(lines(6, 6)))


@case
def worker_distribute_in_batches_of_its_own() -> Any:
    return given(worker.distribute(lines(6, 6), batch=6))


@case
def batched_already() -> Any:
    return given(worker.distribute(lines(6, 6).batch(6).map(lambda batch: batch + 100)))


@case
def chosen_from_batches() -> Any:
    chosen = DATA.choose_from_datasets([DATA.range(6).batch(6), DATA.range(6, 12).batch(6)], DATA.range(2))
    return given(worker.distribute(chosen))


@case
def elements_that_are_batches() -> Any:
    return given(worker.distribute(DATA.from_tensor_slices([[0, 1, 2, 3], [4, 5, 6, 7]]), batch=False))


@case
def policy_file() -> Any:
    spec_says(auto_shard="file", global_batch_size=4)
    return given(worker.distribute(lines(6, 6)))


@case
def policy_off() -> Any:
    spec_says(auto_shard="off", global_batch_size=4)
    return given(worker.distribute(lines(6, 6)))


@case
def policy_hint() -> Any:
    spec_says(auto_shard="hint", global_batch_size=4)
    return given(worker.distribute(lines(6, 6).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)))


@case
def no_policy() -> Any:
    spec_says(global_batch_size=4)
    return given(worker.distribute(DATA.range(8)))


@case
def drop_remainder() -> Any:
    spec_says(auto_shard="data", global_batch_size=4, drop_remainder=True)
    return given(worker.distribute(DATA.range(10)))


@case
def a_function() -> Any:
    def make(context: Any) -> Any:
        numbers = DATA.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.batch(context.get_per_replica_batch_size(4))

    return given(worker.distribute(make))


@case
def input_options() -> Any:
    spec_says(auto_shard="data", global_batch_size=4, prefetch=-1, fetch_to_device=False, per_replica_buffer_size=2, deterministic=True)
    distributed = worker.distribute(DATA.range(8))
    found = distributed._options
    dataset = distributed._original_dataset
    return [
        found.experimental_fetch_to_device,
        found.experimental_per_replica_buffer_size,
        dataset.options().deterministic,
        type(dataset).__name__,
        given(distributed),
    ]


@case
def fewer_elements_than_replicas() -> Any:
    try:
        worker.distribute(DATA.range(8), batch=1)
    except ValueError as error:
        return str(error)


@case
def no_dataset() -> Any:
    try:
        worker.distribute([1, 2])
    except TypeError as error:
        return str(error)


@case
def the_order_of_files() -> Any:
    names = text_files(1, 1, 1, 1, 1, 1)
    return [Path(name.numpy().decode()).name.split("-")[-1] for name in DATA.list_files(names)]


def fitted(keras: Any) -> Any:
    """Which numbers a model has seen in `fit`: the sum of what this worker has read, and of all."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
        model.compile(keras.optimizers.SGD(0.0), loss=keras.losses.MeanSquaredError())
    dataset = lines(12).map(lambda number: (tf.cast([number], tf.float32), tf.zeros([1]))).batch(4)
    return round(model.fit(dataset, epochs=1, verbose=0).history["loss"][0], 3)


@case
def keras_3_fit() -> Any:
    import keras

    return fitted(keras)


@case
def keras_2_fit() -> Any:
    import tf_keras

    return fitted(tf_keras)


def run(directory: str) -> dict[str, Any]:
    """What each case gives in this worker, by name. `directory`: where files may be written."""
    global PLACE
    PLACE = Path(directory)
    results = {}
    for name, function in CASES.items():
        os.environ["ORCH_TASK_SETTINGS"] = SPEC
        try:
            results[name] = function()
        except Exception:
            results[name] = traceback.format_exc()
    return results
