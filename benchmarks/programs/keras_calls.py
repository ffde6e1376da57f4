"""Calls `fit`, `evaluate` and `predict` of Keras 3 twice for each number of steps in one execution, and writes how long each call took.

Usage: ``keras_calls.py DIRECTORY one|mirrored|workers BATCHES STEPS...``; knows nothing of orch. Each number of steps has a model of its
own, two dense layers. The chief, or the one process, writes ``calls.json``: by call and number of steps, the seconds and the seconds of a
core of both turns; of none where a call fails.
"""

import json
import os
import resource
import sys
import time

import keras
import numpy as np
import tensorflow as tf

directory, way, batches, executions = sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(each) for each in sys.argv[4:]]
BATCH = 32
STRATEGIES = {
    "one": tf.distribute.get_strategy,
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "workers": tf.distribute.MultiWorkerMirroredStrategy,
}
if way == "mirrored":
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([time.perf_counter(), usage.ru_utime + usage.ru_stime])


strategy = STRATEGIES[way]()
random = np.random.default_rng(0)
x, y = random.normal(size=(BATCH * batches, 64)).astype("float32"), random.integers(0, 10, size=BATCH * batches)
taken = {}
for steps in executions:
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss=loss, steps_per_execution=steps)
    calls = {
        "fit": lambda model=model: model.fit(x, y, batch_size=BATCH, verbose=0),
        "evaluate": lambda model=model: model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "predict": lambda model=model: model.predict(x, batch_size=BATCH, verbose=0),
    }
    for name, call in calls.items():
        turns = taken.setdefault(name, {})[steps] = []
        try:
            for _ in range(2):
                since = used()
                call()
                turns.append((used() - since).tolist())
        except tf.errors.OpError as error:
            print(f"{name} of {way}, {steps} steps per execution, fails: {error.message[:200]}")

if json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"] == 0:
    with open(os.path.join(directory, "calls.json"), "w") as file:
        json.dump(taken, file)
