"""`worker.files` in two real workers: what each replica gets, step by step, and where a training goes on whose worker was killed.

python files_api.py DIRECTORY        writes DIRECTORY/TASK.json; in attempt 1 of a run it kills worker-1 in the middle of its training
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import worker

ROOT = Path(sys.argv[1])
TASK = worker.context().task
strategy = worker.strategy()


def write(directory: str, *sizes: int) -> str:
    """TFRecord files of these sizes, whose elements are numbered through; the pattern for them."""
    target = ROOT / directory
    if not target.exists():
        aside = ROOT / f".{directory}.{TASK}"
        aside.mkdir()
        numbers = itertools.count()
        for index, size in enumerate(sizes):
            with tf.io.TFRecordWriter(str(aside / f"{index}.tfrecord")) as writer:
                for number in itertools.islice(numbers, size):
                    writer.write(str(number).encode())
        try:
            aside.rename(target)
        except OSError:
            assert target.exists()
    return str(target / "*.tfrecord")


def decode(record: Any) -> Any:
    return tf.strings.to_number(record, tf.int64)


def taken(dataset: Any) -> Any:
    """What this worker's replica gets of each step."""
    return [local(batch) for batch in strategy.experimental_distribute_dataset(dataset)]


def local(batch: Any) -> Any:
    return strategy.experimental_local_results(batch)[0].numpy().tolist()


def from_function(pattern: str) -> Any:
    def make(context: Any) -> Any:
        return worker.files(pattern, decode, batch=4, input_context=context)

    return [local(batch) for batch in strategy.distribute_datasets_from_function(make)]


def refusal(**given: Any) -> str:
    try:
        worker.files(**given)
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(given)


def fit(dataset: Any, **given: Any) -> tuple[int, float]:
    """The sum of all that `fit` has trained on: the gradient of a weight that each element moves by itself."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), lambda y, out: -out[:, 0])
    steps: list[int] = []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    model.fit(dataset.map(lambda x: (tf.cast(x, tf.float32)[:, None], x)), verbose=0, callbacks=[counting], **given)
    return len(steps), float(model.get_weights()[0][0, 0])


def cases() -> dict[str, Any]:
    uneven, one = write("uneven", 4, 5, 4, 3, 6), write("one", 13)
    even = write("even", 4, 4, 4, 4)
    (ROOT / f"{TASK}.lines").write_text("1\n2\n3")
    broken = ROOT / f"broken-{TASK}"
    broken.write_bytes((ROOT / "one" / "0.tfrecord").read_bytes()[:-3])
    return {
        "by file": taken(worker.files(uneven, decode, batch=4)),
        "whole batches": taken(worker.files(uneven, decode, batch=6, drop_remainder=True, repeat=2)),
        "by data": taken(worker.files(one, decode, batch=4)),
        "shuffled, by data": taken(worker.files(one, decode, batch=4, shuffle=20, repeat=2, shard="data")),
        "off": taken(worker.files(one, decode, batch=4, shard="off")),
        "from function": from_function(even),
        "for ever": taken(worker.files(even, decode, batch=4, repeat=None).take(9)),
        "lines": [int(line) for line in worker.files(ROOT / f"{TASK}.lines", reader="lines", shard="off")],
        "reader": taken(worker.files(even, reader=lambda name: tf.data.Dataset.range(3), batch=4)),
        "fit": fit(worker.files(even, decode, batch=4)),
        "fit, uneven": fit(worker.files(uneven, decode, batch=4, drop_remainder=True), epochs=2),
        "no files": refusal(pattern=str(ROOT / "*.none")),
        "small batch": refusal(pattern=even, batch=1),
        "one file": refusal(pattern=one, shard="file"),
        "cut off": refusal(pattern=str(broken)),
        "start": refusal(pattern=even, batch=4, start=1, shuffle=4),
        "hint": refusal(pattern=even, shard="hint"),
        "unknown word": refusal(pattern=even, shard="files"),
        "for ever, as in tf.data": taken(worker.files(even, decode, batch=4, repeat=-1).take(9)),
        "epochs": refusal(pattern=even, repeat=-2),
        "batches": refusal(pattern=even, batch=4, start=-1),
        "empty files": refusal(pattern=write("empty", 0, 0), batch=4),
        "an empty file": refusal(pattern=write("half", 0, 4), batch=4),
        "few elements": refusal(pattern=write("few", 1, 0), batch=4),
    }


KILLED_AT = 7


def train() -> tuple[int, int]:
    """Twelve steps over 24 elements, three epochs; saved after each second step. The last one before the kill is inside an epoch."""
    pattern = write("train", *[2] * 12)
    step, total = tf.Variable(0), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, total=total)
    manager = tf.train.CheckpointManager(checkpoint, ROOT / f"checkpoints-{TASK}", max_to_keep=1)
    manager.restore_or_initialize()
    dataset = worker.files(pattern, decode, batch=6, repeat=3, shuffle=8, seed=7, start=int(step))
    for batch in strategy.experimental_distribute_dataset(dataset):
        total.assign_add(strategy.reduce("sum", strategy.run(tf.reduce_sum, args=(batch,)), axis=None))
        with (ROOT / f"{TASK}.steps").open("a") as file:
            file.write(json.dumps([worker.context().attempt, int(step), local(batch)]) + "\n")
        step.assign_add(1)
        if int(step) % 2 == 0:
            manager.save()
        if (TASK, worker.context().attempt, int(step)) == ("worker-1", 1, KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)
    return int(step), int(total)


if worker.context().attempt == 1:
    (ROOT / f"{TASK}.json").write_text(json.dumps(cases()))
print("steps and sum", *train(), flush=True)
