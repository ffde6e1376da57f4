"""A script that knows nothing of orch. Like TensorFlow's tutorials, it finds its cluster in TF_CONFIG.

orch up examples/tf_config_only.py --workers 2
"""

import json
import os
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

BATCH_PER_WORKER = 32
EPOCHS = 10

tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
workers = len(tf_config.get("cluster", {}).get("worker", ["this one"]))
index = tf_config.get("task", {}).get("index", 0)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch = BATCH_PER_WORKER * workers


def make_dataset(context):
    x, y = digits.load("train")
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.shuffle(len(x)).repeat().batch(context.get_per_replica_batch_size(global_batch))


with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(iterator):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=next(iterator)), axis=None)


iterator = iter(strategy.distribute_datasets_from_function(make_dataset))
steps = len(digits.load("train")[0]) // global_batch
for epoch in range(1, EPOCHS + 1):
    for _ in range(steps):
        loss = train_step(iterator)
    if index == 0:
        print(f"epoch {epoch}  loss {float(loss):.4f}")

x, y = digits.load("test")
accuracy = np.mean(np.argmax(model(x), axis=1) == y)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
