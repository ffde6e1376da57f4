"""Files as input: the digits as TFRecords, which a command writes once on each host before the tasks start.

    orch up examples/digits_files.py --workers 2 --prepare "python examples/digits_files.py --write"

`worker.files` gives each worker its share of the files. The training goes on where it was, if it is stopped and started again with
--max-restarts: the number of the step is saved with the weights.
"""

import os
import sys

import digits
import keras
import numpy as np
import tensorflow as tf

import worker

FILES, EPOCHS, GLOBAL_BATCH = 8, 8, 60
DIRECTORY = digits.DIRECTORY.parent / "digits-tfrecord"


def write():
    """Write the files under other names and rename them: a file that is there is whole."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    images, labels = digits.load("train")
    for index in range(FILES):
        path = DIRECTORY / f"train-{index}.tfrecord"
        aside = f"{path}.{os.getpid()}"
        with tf.io.TFRecordWriter(aside) as writer:
            for image, label in zip(images[index::FILES], labels[index::FILES], strict=True):
                writer.write(image.tobytes() + label.tobytes())
        os.replace(aside, path)
    print(f"{len(labels):,} images in {FILES} files")


def decode(record):
    values = tf.io.decode_raw(tf.strings.substr(record, 0, 64 * 4), tf.float32)
    label = tf.io.decode_raw(tf.strings.substr(record, 64 * 4, 8), tf.int64)
    return tf.reshape(values, [64]), label[0]


def main():
    strategy = worker.strategy()
    task = worker.context()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    # Every worker saves, each in a place of its own: MultiWorkerMirroredStrategy may have variables that all have to take part in.
    place = str(task.checkpoint_dir or DIRECTORY.parent / "checkpoints") + f"/{task.task}"
    manager = tf.train.CheckpointManager(checkpoint, place, max_to_keep=2)
    if task.checkpoint_dir is not None:
        manager.restore_or_initialize()
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(entropy(labels, model(images, training=True))) / GLOBAL_BATCH
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    pattern = str(DIRECTORY / "train-*.tfrecord")
    wanted = {"batch": GLOBAL_BATCH, "repeat": EPOCHS, "shuffle": 500, "seed": 1, "drop_remainder": True}
    for batch in worker.distribute(worker.files(pattern, decode, start=int(step), **wanted)):
        loss = train_step(batch)
        step.assign_add(1)
        if int(step) % 50 == 0:
            manager.save()
            worker.report(step=int(step), loss=float(loss))
    images, labels = digits.load("test")
    accuracy = np.mean(np.argmax(model(images), axis=1) == labels)
    print(f"test accuracy {accuracy:.2f}")
    sys.exit(int(accuracy < 0.9))


if __name__ == "__main__":
    write() if "--write" in sys.argv[1:] else main()
