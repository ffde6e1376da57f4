"""A training loop of one's own under MultiWorkerMirroredStrategy.

    orch up examples/mwms_custom_loop.py --workers 4

Every worker computes the gradients of its share of each global batch, and TensorFlow adds them up. So four workers take
the same steps as one process with the same global batches, which `python examples/mwms_custom_loop.py --single` runs:
compare the weights that both save with --dump-weights.
"""

import argparse
import itertools
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 60


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--single", action="store_true", help="one process, whatever the cluster")
    parser.add_argument("--dump-weights", metavar="PATH", help="the chief saves the weights (.npz)")
    return parser.parse_args()


def make_dataset():
    x, y = digits.load("train")
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    # A seed: all workers must shuffle alike, for each takes its share of the same batch.
    dataset = dataset.shuffle(len(x), seed=1).batch(GLOBAL_BATCH, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def main():
    arguments = parse_arguments()
    strategy = tf.distribute.get_strategy() if arguments.single else worker.strategy()
    is_chief = worker.context().is_chief
    keras.utils.set_random_seed(1)

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            # Divided by the global batch: the sum over all replicas is then the mean over all examples.
            loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    dataset = strategy.experimental_distribute_dataset(make_dataset())
    batches = itertools.chain.from_iterable(itertools.repeat(dataset, arguments.epochs))
    for step, batch in enumerate(itertools.islice(batches, arguments.steps), start=1):
        loss = train_step(batch)
        if step % 20 == 0:
            worker.report(step=step, loss=loss)
            if is_chief:
                print(f"step {step}  loss {float(loss):.4f}")

    if is_chief and arguments.dump_weights:
        np.savez(arguments.dump_weights, *model.get_weights())
    x, y = digits.load("test")
    accuracy = np.mean(np.argmax(model(x), axis=1) == y)
    print(f"test accuracy {accuracy:.2f}")
    if accuracy < 0.9 and not arguments.steps:
        sys.exit(1)


if __name__ == "__main__":
    main()
