"""A `fit` on several workers that notes the time of each step; worker 1 may kill itself once. For benchmarks/resume.py.

resume_steps.py DIRECTORY backup|none DIE_AT   (the step of the training, from 0; -1: never)
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
EPOCHS, STEPS, BATCH = 4, 50, 32
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


callbacks = [Clock()]
if saves == "backup":
    callbacks.append(keras.callbacks.BackupAndRestore(str(directory / "backup"), save_freq=10))
x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 64)).astype("float32")
model.fit(x, x.sum(1, keepdims=True), batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=0)
