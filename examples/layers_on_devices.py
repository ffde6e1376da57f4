"""A network whose layers live on different devices, saved, and restored where there are other devices.

    orch up examples/layers_on_devices.py --strategy none --cpus 2 -- --save model
    orch up examples/layers_on_devices.py --strategy none --cpus 1 -- --restore model

Each layer is built under the device that it shall live on: its variables are made there, and stay there. What is computed in it
is placed by the same word. A SavedModel keeps the devices of its operations: restored where one of them is missing, TensorFlow's
soft placement takes another. `--set defaults.devices.soft_placement=false` makes that an error, and `orch up --cpus 2` gives it the
devices it was made for.
"""

import argparse
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

BATCH = 64
EPOCHS = 12


class Network(tf.Module):
    """Two layers on the devices of `places`."""

    def __init__(self, places):
        super().__init__()
        self.places = places
        with tf.device(places[0]):
            self.hidden = keras.layers.Dense(64, "relu")
            self.hidden.build([None, 64])
        with tf.device(places[1]):
            self.out = keras.layers.Dense(10)
            self.out.build([None, 64])
        self.weights = [*self.hidden.trainable_variables, *self.out.trainable_variables]
        self.kept = [variable.value for variable in self.weights]  # as TensorFlow's own variables, for the SavedModel

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32)])
    def logits(self, images):
        with tf.device(self.places[0]):
            hidden = self.hidden(images)
        with tf.device(self.places[1]):
            return self.out(hidden)


def train(directory):
    devices = [f"/device:CPU:{index}" for index in range(len(tf.config.list_logical_devices("CPU")))]
    network = Network((devices[0], devices[-1]))
    print("layers on:", ", ".join(variable.value.device.rpartition("device:")[2] for variable in network.weights[::2]))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(network.weights)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, network.logits(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, network.weights), network.weights, strict=True))
        return loss

    x, y = digits.load("train")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH, drop_remainder=True)
    for _ in range(EPOCHS):
        for batch in batches:
            loss = step(*batch)
    print(f"loss {float(loss):.4f}")
    if directory:
        tf.saved_model.save(network, directory)
    return network


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", metavar="DIR")
    parser.add_argument("--restore", metavar="DIR")
    wanted = parser.parse_args()
    network = tf.saved_model.load(wanted.restore) if wanted.restore else train(wanted.save)
    graph = network.logits.get_concrete_function().graph if not wanted.restore else network.logits.concrete_functions[0].graph
    print("placed on:", ", ".join(sorted(places(graph))))
    x, y = digits.load("test")
    logits = network.logits(x)
    print("computed on:", logits.device.rpartition("device:")[2])
    accuracy = np.mean(np.argmax(logits, axis=1) == y)
    print(f"test accuracy {accuracy:.2f}")
    if accuracy < 0.9:
        sys.exit(1)


def places(graph):
    """The devices that a graph's operations ask for."""
    return {operation.device.rpartition("device:")[2] for operation in graph.get_operations() if operation.device}


if __name__ == "__main__":
    main()
