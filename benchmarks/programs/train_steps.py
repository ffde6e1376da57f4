"""Trains a small Keras model under MultiWorkerMirroredStrategy and writes how long its steps took.

Usage: ``train_steps.py DIRECTORY STEPS``; knows nothing of orch. Each worker writes ``DIRECTORY/<index>.json``.
"""

import json
import os
import statistics
import sys
import time

import numpy as np
import tensorflow as tf

directory, steps = sys.argv[1], int(sys.argv[2])
WARM_UP = 50
GLOBAL_BATCH = 256

strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(0)
x = random.normal(size=(GLOBAL_BATCH, 64)).astype("float32")
y = random.integers(0, 10, size=GLOBAL_BATCH)
dataset = tf.data.Dataset.from_tensors((x, y)).unbatch().cache().repeat().batch(GLOBAL_BATCH)

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)]
    )
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replica_step(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loss_of(labels, model(features, training=True))) / GLOBAL_BATCH
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def step(iterator):
    losses = strategy.run(replica_step, args=next(iterator))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


iterator = iter(strategy.experimental_distribute_dataset(dataset))
times = []
for _ in range(WARM_UP + steps):
    since = time.perf_counter()
    loss = step(iterator).numpy()
    times.append(time.perf_counter() - since)
assert np.isfinite(loss)

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
threads = {name: os.environ[name] for name in os.environ if name == "OMP_NUM_THREADS" or name.endswith("OP_THREADS")}
with open(os.path.join(directory, f"{index}.json"), "w") as file:
    json.dump({"median_s": statistics.median(times[WARM_UP:]), "threads": threads}, file)
