"""ParameterServerStrategy: the chief hands out steps, workers compute them, the variables live on a parameter server.

    orch up examples/parameter_server.py --workers 2 --ps 1

One script for all roles: `worker.strategy()` turns the worker and ps tasks into servers, and only the chief comes back from it.
The workers do not wait for each other, so every run is a little different.
"""

import argparse
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

BATCH = 32


def make_dataset():
    # Each worker has a dataset of its own and nothing is shared out: each shuffles all images its own way.
    x, y = digits.load("train")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat().batch(BATCH)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    strategy = worker.strategy()

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    mean_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = mean_loss(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(iterator):
        return strategy.run(replica_step, args=next(iterator))

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    else:  # by hand: one process does it all
        coordinator = None
        iterator = iter(make_dataset())

    steps = len(digits.load("train")[0]) // BATCH
    for epoch in range(1, arguments.epochs + 1):
        for _ in range(steps):
            loss = coordinator.schedule(train_step, args=(iterator,)) if coordinator else train_step(iterator)
        if coordinator:
            coordinator.join()  # until now, the workers have been computing behind our back
            loss = loss.fetch()
        print(f"epoch {epoch}  loss {float(loss):.4f}")
        worker.report(epoch=epoch, loss=loss)

    x, y = digits.load("test")
    accuracy = np.mean(np.argmax(model(x), axis=1) == y)
    print(f"test accuracy {accuracy:.2f}")
    if accuracy < 0.9:
        sys.exit(1)


if __name__ == "__main__":
    main()
