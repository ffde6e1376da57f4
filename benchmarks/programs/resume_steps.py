"""A `fit` on several workers that notes the time of each step; worker 1 may kill itself once. For benchmarks/resume.py.

resume_steps.py DIRECTORY backup|none|turns DIE_AT   (the step of the training, from 0; -1: never)

"turns": a longer training, of which every other epoch makes no snapshots in memory. Each epoch is noted in another file: whether it makes
snapshots, its seconds, its seconds of CPU, and those in the function that makes the snapshots; and how much memory they have.
"""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

directory, saves, die_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
EPOCHS, STEPS, BATCH = 40 if saves == "turns" else 4, 50, 32
task, attempt = os.environ["ORCH_TASK"], os.environ["ORCH_ATTEMPT"]

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [keras.Input((64,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(1e-3), "mse")


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.lines = (directory / f"{task}-{attempt}").open("w")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        step = self.epoch * STEPS + batch
        print(step, time.time(), file=self.lines, flush=True)
        if task == "worker-1" and attempt == "1" and step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Turns(keras.callbacks.Callback):
    """Turns the snapshots off in every other epoch."""

    def on_train_begin(self, logs=None):
        module = next(module for name, module in sys.modules.items() if name.endswith("worker.task.snapshots.snapshots"))
        real = module.TrainingSnapshots.after_step
        self.spent, self.is_on, self.lines = 0.0, True, (directory / f"turns-{task}").open("w")

        def after_step(snapshots, step, document):
            if not self.is_on:
                return False
            begun = time.perf_counter()
            try:
                return real(snapshots, step, document)
            finally:
                self.spent += time.perf_counter() - begun

        module.TrainingSnapshots.after_step = after_step

    def on_epoch_begin(self, epoch, logs=None):
        self.is_on, self.spent = epoch % 2 == 0, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.begun = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS - 1:
            wall, cpu = time.perf_counter() - self.begun[0], time.process_time() - self.begun[1]
            memory = sum(os.stat(path).st_blocks * 512 for path in os.environ["ORCH_SNAPSHOTS"].split(":"))
            print(int(self.is_on), wall, cpu, self.spent, memory, file=self.lines, flush=True)


callbacks = [Turns() if saves == "turns" else Clock()]
if saves == "backup":
    callbacks.append(keras.callbacks.BackupAndRestore(str(directory / "backup"), save_freq=10))
x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 64)).astype("float32")
model.fit(x, x.sum(1, keepdims=True), batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=0)
