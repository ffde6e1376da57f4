"""TPUStrategy: the digits on a TPU, or, because you ask for it, on the CPU of a machine without one.

    orch up examples/tpu_digits.py --tpu local                     # on a TPU VM
    orch up examples/tpu_digits.py --tpu local --set tpu.fallback=cpu # on a laptop

`worker.strategy()` finds, connects and initialises the TPU. On a TPU every batch has the same shape, so the last one, which is not
full, is left out; and the steps run inside a tf.function. By hand, `python examples/tpu_digits.py` trains on one device.
"""

import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 64
EPOCHS = 12


def main():
    strategy = worker.strategy()
    print(f"{type(strategy).__name__}, replicas: {strategy.num_replicas_in_sync}")

    x, y = digits.load("train")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(GLOBAL_BATCH, drop_remainder=True)
    dataset = worker.distribute(dataset, batch=False)

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        x = worker.replicate(x)  # whole on each device of a replica, if a replica has several
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
