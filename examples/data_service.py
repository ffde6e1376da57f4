"""Input made by other processes: the tf.data service.

    orch up examples/data_service.py --workers 2 --set tasks.data_worker=2

orch starts a dispatcher and the data workers beside the training. They read, shuffle, augment and batch; the training workers
take what is ready. The pipeline travels as TensorFlow's graph: the data workers need none of this file's Python. By hand, `python
examples/data_service.py`, the same pipeline runs in the process itself.
"""

import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

GLOBAL_BATCH = 60
STEPS = 700


def shift(x, y):
    """Move an image by up to one pixel in each direction."""
    by = tf.random.uniform([2], -1, 2, tf.int32)
    return tf.reshape(tf.roll(tf.reshape(x, [8, 8]), by, [0, 1]), [64]), y


def make_dataset(context):
    x, y = digits.load("train")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat()
    dataset = dataset.map(shift, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(context.get_per_replica_batch_size(GLOBAL_BATCH), drop_remainder=True)
    service = worker.context().data_service
    if service is not None:
        # One name: the training workers share one job, and each batch goes to one of them. Nobody waits for the end of an
        # epoch, for the dataset repeats: under a synchronous strategy all workers must come to the same number of steps.
        dataset = dataset.apply(tf.data.experimental.service.distribute("parallel_epochs", service, job_name="digits"))
    return dataset.prefetch(2)


def main():
    strategy = worker.strategy()
    is_chief = worker.context().is_chief
    keras.utils.set_random_seed(1)

    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
        # The rate falls to nothing: which images come last is chance, and must not show in the result.
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, STEPS), momentum=0.9)
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

    if is_chief:
        print(f"input from {worker.context().data_service or 'this process'}")
    batches = iter(strategy.distribute_datasets_from_function(make_dataset))
    for step in range(1, STEPS + 1):
        loss = train_step(next(batches))
        if step % 20 == 0:
            worker.report(step=step, loss=loss)
            if is_chief:
                print(f"step {step}  loss {float(loss):.4f}")

    x, y = digits.load("test")
    accuracy = np.mean(np.argmax(model(x), axis=1) == y)
    print(f"test accuracy {accuracy:.2f}")
    if accuracy < 0.9:
        sys.exit(1)


if __name__ == "__main__":
    main()
