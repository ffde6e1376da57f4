"""A training loop whose bound is known: `orch scale bounds.py -n 1,2 -- --input 0.05`. A sleep stands in for what takes cores."""

import argparse
import itertools
import time
from typing import Any

import numpy as np
import tensorflow as tf

import worker

parser = argparse.ArgumentParser()
for name in ("compute", "input", "python", "slow", "turns", "each"):
    # Seconds of a step; slow: of worker-1; turns: of another worker in each step; each: for each example.
    parser.add_argument(f"--{name}", type=float, default=0.0)
parser.add_argument("--kilobytes", type=int, default=4)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--for-all", action="store_true", help="the batch is divided among the workers")
parser.add_argument("--steps", type=int, default=10**9)
given = parser.parse_args()
task, number = worker.context(), itertools.count()
strategy = worker.strategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros([given.kilobytes * 256]))


def wait(batch: np.ndarray) -> np.ndarray:
    time.sleep(given.input)
    return batch


def compute(batch: np.ndarray) -> Any:
    is_its_turn = next(number) % max(2, task.world_size) == task.index
    time.sleep(given.compute + given.each * len(batch) + given.slow * (task.index == 1) + given.turns * is_its_turn)
    return np.float32(len(batch))


data = tf.data.Dataset.from_tensors(np.zeros(4, np.float32)).repeat()
data = data.batch(given.batch // (task.world_size if given.for_all else 1), drop_remainder=True)
data = data.map(lambda batch: tf.ensure_shape(tf.numpy_function(wait, [batch], tf.float32), [None, 4])) if given.input else data
batches = iter(strategy.distribute_datasets_from_function(lambda context: data))


@tf.function  # type: ignore[untyped-decorator]
def train_step(batch: tf.Tensor) -> None:
    def of_replica(batch: tf.Tensor) -> None:
        seen = tf.numpy_function(compute, [batch], tf.float32)
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", weights * 0 + tf.reshape(seen, []))
        weights.assign_sub(gradient * 0)

    strategy.run(of_replica, (batch,))


for _ in range(given.steps):
    train_step(next(batches))
    time.sleep(given.python)
