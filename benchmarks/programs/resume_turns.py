"""A training on several workers whose turns are kept in memory by orch, or not.

resume_turns.py DIRECTORY TURNS STEPS WIDTH     (STEPS in each turn; WIDTH: of the two hidden layers)

The turns go kept, plain, plain, kept, and so on. A line for each turn: whether it is kept, its seconds, its seconds of CPU, and those of
the calls after its steps. It is one training, so that the turns differ in nothing but these calls; its steps are reported in each.
"""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import worker

directory, (turns, steps, width) = Path(sys.argv[1]), map(int, sys.argv[2:])
task, strategy = worker.context(), worker.strategy()
x = np.random.default_rng(0).normal(size=(32, 64)).astype("float32")
batch = next(iter(strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors((x, x.sum(1, keepdims=True))))))


def make():
    with strategy.scope():
        layers = [
            keras.layers.Dense(width, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(width, "relu"),
        ]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(batch):
        def of_replica(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / strategy.num_replicas_in_sync
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(of_replica, args=(batch,)), axis=None)

    return model, optimizer, step


model, optimizer, train = make()
saver = worker.checkpoints(model=model, optimizer=optimizer, every=10**9)
skipped = 0  # steps of the plain turns, of which the saver does not know yet
for _ in range(300):  # so that orch has chosen how often it makes snapshots
    saver.step(loss=train(batch))
with (directory / f"turns-{task.task}").open("w") as lines:
    for turn in range(turns):
        is_kept, after = turn % 4 in (0, 3), 0.0
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = float(train(batch))
            ended = time.process_time()
            if is_kept:
                saver.step(1 + skipped, loss=loss)
                skipped = 0
            else:
                skipped += 1
                worker.report(step=saver.steps + skipped, loss=loss)
            after += time.process_time() - ended
        print(int(is_kept), time.perf_counter() - begun, time.process_time() - cpu, after, file=lines)
    memory = sum(os.stat(path).st_blocks * 512 for path in os.environ["ORCH_SNAPSHOTS"].split(":"))
    print(memory, file=lines)
