"""A training loop of one's own that loses nothing to a restart.

    orch up examples/resume_loop.py --workers 2 --max-restarts 3

With several hosts, the same training is elastic: it continues with the hosts that are left, and takes in those that come back.

    orch up examples/resume_loop.py -H hostA,hostB,hostC --workers 1:3 --max-restarts 5 --global-batch-size 60

Kill a worker, or the whole run: `orch up --max-restarts` starts the tasks again, and `orch up --resume RUN` a run that has ended. Both
continue with the step after the newest save, and end with the weights of a training without a restart, bit by bit.
`--die-at STEP` kills the chief in its first attempt.
"""

import argparse
import os
import signal
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 60
EPOCHS = 4

parser = argparse.ArgumentParser()
parser.add_argument("--die-at", type=int, help="the chief kills itself after so many steps, in its first attempt")
arguments = parser.parse_args()

task, strategy = worker.context(), worker.strategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

x, y = digits.load("train")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(GLOBAL_BATCH, drop_remainder=True)

# Restores the newest save. A script that is started by hand says where its saves are.
saver = worker.checkpoints(model=model, optimizer=optimizer, every=10, dir=None if task.run_id else "saves")


def replica_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / GLOBAL_BATCH
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def train_step(batch):
    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


for _epoch in saver.epochs(EPOCHS):
    for batch in saver.batches(dataset):  # after a restart: the batches that are left of this epoch
        loss = train_step(batch)
        saver.step(loss=loss)
        if task.is_chief and task.attempt == 1 and saver.steps == arguments.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

x, y = digits.load("test")
accuracy = np.mean(np.argmax(model(x), axis=1) == y)
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
