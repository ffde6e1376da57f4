"""One worker is slow, reads slowly, or never comes: how this is seen (docs/faster.md).

    orch up examples/who_waits.py --workers 3 -- --slow 0.05
    orch up examples/who_waits.py --workers 3 -- --slow-input 0.05
    orch up examples/who_waits.py --workers 3 --hang-timeout 30 -- --hang-at 100

The last worker is the one. In another shell, look at the run:

    orch top
    orch stacks
"""

import argparse
import threading
import time

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

BATCH = 20


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--slow", type=float, default=0.0, metavar="SECONDS", help="the last worker works so much longer in each step")
    parser.add_argument("--slow-input", type=float, default=0.0, metavar="SECONDS", help="its input takes so much longer for each step")
    parser.add_argument("--hang-at", type=int, default=0, metavar="STEP", help="it stands still after this step")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    strategy, context = worker.strategy(), worker.context()
    is_last = context.rank == context.world_size - 1
    x, y = digits.load("train")

    def read(row):
        if is_last and arguments.slow_input:
            time.sleep(arguments.slow_input)
        return row

    def make_dataset(input_context):
        batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(len(x), seed=context.index).batch(BATCH, drop_remainder=True)
        return batches.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(read, [x], tf.float32), [BATCH, 64]), y))

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / (BATCH * strategy.num_replicas_in_sync)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    @tf.function
    def train_step(batch):
        strategy.run(replica_step, args=batch)

    batches = iter(worker.distribute(make_dataset, strategy=strategy))
    for step in range(1, arguments.steps + 1):
        train_step(next(batches))
        worker.report(step=step)
        if is_last and arguments.slow:
            time.sleep(arguments.slow)
        if is_last and step == arguments.hang_at:
            threading.Event().wait()

    x, y = digits.load("test")
    print(f"test accuracy {np.mean(np.argmax(model(x), axis=1) == y):.2f}")


if __name__ == "__main__":
    main()
