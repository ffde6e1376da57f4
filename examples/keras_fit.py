"""`model.fit` as TensorFlow's tutorial for several workers writes it: nothing here knows of orch.

orch up examples/keras_fit.py --workers 2
"""

import json
import os
import sys

import digits
import keras
import tensorflow as tf

tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
workers = len(tf_config.get("cluster", {}).get("worker", ["this one"]))
GLOBAL_BATCH = 32 * workers

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def dataset(part):
    x, y = digits.load(part)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(GLOBAL_BATCH)


with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(dataset("train"), epochs=10, validation_data=dataset("test"), verbose=2)
loss, accuracy = model.evaluate(dataset("test"), verbose=0)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
