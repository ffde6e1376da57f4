"""`model.fit` with parameter servers, which needs Keras 2 (tf-keras): the chief hands out steps, and the workers compute them.

    orch up examples/keras_parameter_server.py --strategy parameter_server --workers 2 --ps 1 --keras legacy

Fit counts steps, not data: each worker makes a dataset of its own, without an end. The workers do not wait for each other, so every run
is a little different.
"""

import sys

import digits
import numpy as np
import tensorflow as tf

import worker

BATCH = 32
STEPS = 45  # in an epoch: about all of the 1,437 images once

strategy = worker.strategy()  # workers and parameter servers stay in here


def make_dataset(context=None):
    x, y = digits.load("train")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat().batch(BATCH)


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input([64]), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.1),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(tf.keras.utils.experimental.DatasetCreator(make_dataset), epochs=12, steps_per_epoch=STEPS, verbose=2)
x, y = digits.load("test")
accuracy = np.mean(np.argmax(model.predict(x, verbose=0), axis=1) == y)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
