"""MirroredStrategy over several logical CPU devices: try multi-device code on a laptop without a GPU.

    orch up examples/mirrored_cpus.py --strategy mirrored --cpus 4

`--cpus 4` splits the CPU into four devices before this script starts. On a machine with GPUs, leave it out: `worker.strategy()`
takes all of them, and `--set defaults.devices.logical_gpus=1024,1024` makes two out of one. Without orch,
`python examples/mirrored_cpus.py` trains on one device.
"""

import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 64
EPOCHS = 6


def main():
    strategy = worker.strategy()
    print(f"replicas: {strategy.num_replicas_in_sync}")

    x, y = digits.load("train")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(GLOBAL_BATCH, drop_remainder=True)
    dataset = strategy.experimental_distribute_dataset(dataset)  # each replica gets its part of every batch

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    for epoch in range(1, EPOCHS + 1):
        for batch in dataset:
            loss = train_step(batch)
        print(f"epoch {epoch}  loss {float(loss):.4f}")
        worker.report(epoch=epoch, loss=loss)

    x, y = digits.load("test")
    accuracy = np.mean(np.argmax(model(x), axis=1) == y)
    print(f"test accuracy {accuracy:.2f}")
    if accuracy < 0.9:
        sys.exit(1)


if __name__ == "__main__":
    main()
