"""A parameter server cluster in which worker 1 is killed once. Usage: ``lose_one_ps.py DIRECTORY``, under ``orch up --ps 1``.

The chief writes ``DIRECTORY/died`` (the time of the kill) and ``DIRECTORY/0.json``: when the next step was done by any worker
(`stepped`), and when worker 1 had done one again (`reduced`).
"""

import json
import os
import signal
import sys
import time

import tensorflow as tf
from moments import write

import worker

directory = sys.argv[1]
if worker.context().task == "worker-1":
    write(directory, "pid", os.getpid())
strategy = worker.strategy()
with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def step():
    count.assign_add(1)
    return tf.distribute.coordinator.experimental_get_current_worker_index()


def run():
    results = [coordinator.schedule(step) for _ in range(4)]
    coordinator.join()
    return {int(result.fetch()) for result in results}


while 1 not in run():
    pass
with open(os.path.join(directory, "pid")) as file:
    pid = json.load(file)
write(directory, "died", time.time())
os.kill(pid, signal.SIGKILL)
used = run()
stepped = time.time()
while 1 not in used:
    used = run()
write(directory, "0.json", {"stepped": stepped, "reduced": time.time()})
