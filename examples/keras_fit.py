"""`model.fit` as TensorFlow's tutorial for several workers writes it: nothing here knows of orch, nor of which Keras it is.

orch up examples/keras_fit.py --workers 2                   with Keras 3
orch up examples/keras_fit.py --workers 2 --keras legacy    with Keras 2 (tf-keras)
"""

import json
import os
import sys

import digits
import tensorflow as tf

tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
workers = len(tf_config.get("cluster", {}).get("worker", ["this one"]))
GLOBAL_BATCH = 32 * workers  # one batch of 32 for each worker

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def dataset(part):
    x, y = digits.load(part)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(GLOBAL_BATCH)


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input([64]), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)])
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(dataset("train"), epochs=5, validation_data=dataset("test"), shuffle=False, verbose=2)
loss, accuracy = model.evaluate(dataset("test"), verbose=0)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
