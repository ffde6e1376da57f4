"""Forms a cluster under MultiWorkerMirroredStrategy and all-reduces; worker 1 kills itself, once. Knows nothing of orch.

Usage: ``lose_one.py DIRECTORY``. ``DIRECTORY/died`` holds the time of the death; each worker that all-reduces after it writes
``DIRECTORY/<index>.json``, and one that fails after it writes ``DIRECTORY/<index>.failed``.
"""

import json
import os
import signal
import sys
import time

import tensorflow as tf
from moments import write

directory = sys.argv[1]
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
died = os.path.join(directory, "died")
again = os.path.exists(died)
strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total():
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)


assert total().numpy() == strategy.num_replicas_in_sync
if again:
    write(directory, f"{index}.json", {"reduced": time.time()})
    sys.exit()
for _ in range(20):
    total()
if index == 1:
    write(directory, "died", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        total()
except Exception as error:
    write(directory, f"{index}.failed", {"at": time.time(), "error": str(error)[:500]})
    raise
