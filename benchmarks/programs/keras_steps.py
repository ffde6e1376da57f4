"""Trains a small model under MultiWorkerMirroredStrategy, by Keras's `fit` or by a loop, and writes how long a step took.

Usage: ``keras_steps.py DIRECTORY STEPS fit|loop whole|open|ends``; knows nothing of orch, nor of which Keras it is. The first of two epochs
is not counted. ``whole``: endless data whose batches are whole for certain; ``open``: endless data whose batches may have any size;
``ends``: data of so many steps.
"""

import json
import os
import resource
import sys
import time

import numpy as np
import tensorflow as tf

directory, steps, how, form = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
GLOBAL_BATCH = 256

strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(0)
x = random.normal(size=(GLOBAL_BATCH, 64)).astype("float32")
y = random.integers(0, 10, size=GLOBAL_BATCH)
rows = tf.data.Dataset.from_tensors((x, y)).unbatch().cache()
dataset = rows.batch(GLOBAL_BATCH).repeat(steps) if form == "ends" else rows.repeat().batch(GLOBAL_BATCH)
if form == "open":
    dataset = dataset.map(lambda x, y: (x, y))

with strategy.scope():
    layers = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.layers.Input((64,)), *layers])
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss=loss_of)
    model.optimizer.build(model.trainable_variables)


def used():
    """Seconds, and seconds of a core that all threads of this process have used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([time.perf_counter(), usage.ru_utime + usage.ru_stime])


class Clock(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.since = used()

    def on_epoch_end(self, epoch, logs=None):
        self.taken = used() - self.since


def replica_step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(features, training=True)) / strategy.num_replicas_in_sync
    model.optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return loss


@tf.function
def step(iterator):
    return strategy.reduce("SUM", strategy.run(replica_step, args=next(iterator)), axis=None)


clock = Clock()
if how == "fit":
    model.fit(dataset, epochs=2, steps_per_epoch=None if form == "ends" else steps, verbose=0, callbacks=[clock])
else:
    distributed = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(distributed)
    for epoch in range(2):
        iterator = iter(distributed) if form == "ends" else iterator
        clock.on_epoch_begin(epoch)
        for _ in range(steps):
            loss = step(iterator)
        assert np.isfinite(loss.numpy())
        clock.on_epoch_end(epoch)

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with open(os.path.join(directory, f"{index}.json"), "w") as file:
    json.dump(dict(zip(("step_s", "cpu_s"), clock.taken / steps, strict=True)), file)
