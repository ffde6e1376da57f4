"""Trains a small model under MultiWorkerMirroredStrategy, by Keras's `fit` or by a loop, and writes how long a step took.

Usage: ``keras_steps.py DIRECTORY STEPS fit|loop``; knows nothing of orch, nor of which Keras it is. The first of two epochs is not counted.
"""

import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

directory, steps, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
GLOBAL_BATCH = 256

strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(0)
x = random.normal(size=(GLOBAL_BATCH, 64)).astype("float32")
y = random.integers(0, 10, size=GLOBAL_BATCH)
dataset = tf.data.Dataset.from_tensors((x, y)).unbatch().cache().repeat().batch(GLOBAL_BATCH)

with strategy.scope():
    layers = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.layers.Input((64,)), *layers])
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss=loss_of)
    model.optimizer.build(model.trainable_variables)


class Clock(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.since = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self.since


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
    model.fit(dataset, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[clock])
else:
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    for epoch in range(2):
        clock.on_epoch_begin(epoch)
        for _ in range(steps):
            loss = step(iterator)
        assert np.isfinite(loss.numpy())
        clock.on_epoch_end(epoch)

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with open(os.path.join(directory, f"{index}.json"), "w") as file:
    json.dump({"step_s": clock.seconds / steps}, file)
