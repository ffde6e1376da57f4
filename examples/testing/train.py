"""Softmax regression on scikit-learn's handwritten digits, trained by several workers together.

    orch up train.py --workers 2 -- --steps 200

What a test wants to call is a function here: `train` takes its strategy and its data, and returns what it has learnt.
"""

import argparse

import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 60
"""Images in one step, of all workers together."""


def load_digits():
    """1,740 images, 64 pixels each from 0 to 1, and their digits."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    count = len(images) // GLOBAL_BATCH * GLOBAL_BATCH
    return (images[:count] / 16).astype(np.float32), digits[:count].astype(np.int64)


def make_dataset(images, digits):
    """Batches without end. Each worker gets its share of the same global batch, for the policy is DATA and nothing is shuffled."""
    dataset = tf.data.Dataset.from_tensor_slices((images, digits)).batch(GLOBAL_BATCH).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def train(strategy, images, digits, steps, rate=0.5):
    """Take so many steps. Returns the weights (65 rows, 10 columns; the last row is the bias) and the loss of each step."""
    with strategy.scope():
        weights = tf.Variable(tf.zeros((65, 10)))

    def replica_step(x, y):
        x = tf.pad(x, [[0, 0], [0, 1]], constant_values=1.0)
        with tf.GradientTape() as tape:
            errors = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights)
            # Divided by the global batch: the sum over all workers is then the mean over all images.
            loss = tf.reduce_sum(errors) / GLOBAL_BATCH
        gradient = tape.gradient(loss, weights)
        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        weights.assign_sub(rate * total)
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    losses = []
    batches = iter(strategy.experimental_distribute_dataset(make_dataset(images, digits)))
    for step in range(1, steps + 1):
        losses.append(float(train_step(next(batches))))
        worker.report(step=step, loss=losses[-1])
    return {"weights": weights.numpy(), "losses": losses}


def accuracy(weights, images, digits):
    """The part of the images, from 0 to 1, whose digit the weights tell."""
    return float(np.mean(np.argmax(images @ weights[:-1] + weights[-1], axis=1) == digits))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    images, digits = load_digits()
    trained = train(worker.strategy(), images, digits, arguments.steps)
    print(f"accuracy {accuracy(trained['weights'], images, digits):.2f}")


if __name__ == "__main__":
    main()
