"""A training that goes on with fewer workers when a host is lost, and with more when it is back.

    orch up examples/elastic.py -H hostA,hostB,hostC --workers 1:3 --max-restarts 5

Each attempt prints its number of workers and a sum of the images of its first batches: whatever that number is, each global batch has the
same images, in the same order, and no batch is left out or comes twice. `--pause SECONDS` makes each step longer: time to stop a host, and
to start it again.
"""

import argparse
import sys
import time

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 60  # which 1, 2 and 3 divide

parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=float, default=0.0)
arguments = parser.parse_args()

task, strategy = worker.context(), worker.strategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

x, y = digits.load("train")
numbers = np.arange(len(x))
dataset = tf.data.Dataset.from_tensor_slices((x, y, numbers)).shuffle(len(x)).batch(GLOBAL_BATCH, drop_remainder=True)
saver = worker.checkpoints(model=model, optimizer=optimizer, every=10, dir=None if task.run_id else "saves")


def replica_step(x, y, numbers):
    with tf.GradientTape() as tape:
        # Divided by the global batch: neither the loss nor the learning rate depends on the number of workers.
        loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / GLOBAL_BATCH
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss, tf.reduce_sum(numbers)


@tf.function
def train_step(batch):
    return [strategy.reduce("SUM", each, axis=None) for each in strategy.run(replica_step, args=batch)]


shown = 0
for _epoch in saver.epochs(4):
    for batch in saver.batches(dataset):
        loss, numbers_of_batch = train_step(batch)
        saver.step(loss=loss)
        if task.is_chief and shown < 3:
            shown += 1
            print(f"{task.world_size} workers, step {saver.steps}: its images have the sum {int(numbers_of_batch)}", flush=True)
        time.sleep(arguments.pause)

x, y = digits.load("test")
accuracy = np.mean(np.argmax(model(x), axis=1) == y)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
