"""Forms a cluster under MultiWorkerMirroredStrategy, does one all-reduce and writes when that was done.

Usage: ``first_reduce.py DIRECTORY [HOLD]``; knows nothing of orch. Each worker writes ``DIRECTORY/<index>.json``. With HOLD
it then waits for the file ``DIRECTORY/go``, so that somebody can look at its memory.
"""

import json
import os
import sys
import time


def reduce_once(directory, hold=False):
    import tensorflow as tf

    imported = time.time()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    formed = time.time()

    @tf.function
    def total():
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)

    workers = strategy.num_replicas_in_sync
    assert total().numpy() == workers
    times = {"begun": begun, "imported": imported, "formed": formed, "reduced": time.time()}

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    path = os.path.join(directory, f"{index}.json")
    with open(path + ".part", "w") as file:
        json.dump(times, file)
    os.rename(path + ".part", path)
    while hold and not os.path.exists(os.path.join(directory, "go")):
        time.sleep(0.05)


begun = time.time()
if __name__ == "__main__":
    reduce_once(sys.argv[1], len(sys.argv) > 2)
