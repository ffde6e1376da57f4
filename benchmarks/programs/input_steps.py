"""What a worker's input costs. Each worker writes ``DIRECTORY/TASK.json``.

``input_steps.py DIRECTORY steps N``: ms a step with `worker.distribute` and by hand, in turns of N steps.
``input_steps.py DIRECTORY read BATCH FILE...``: bytes and seconds that an epoch of these files costs under each policy.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import tensorflow as tf

import worker

directory, what = Path(sys.argv[1]), sys.argv[2]
strategy = worker.strategy()
GLOBAL_BATCH = 256
TURNS = 6


@tf.function
def step(iterator):
    batch = next(iterator)
    return strategy.reduce("SUM", strategy.run(lambda x: tf.reduce_sum(tf.matmul(x, x, transpose_b=True)), args=(batch,)), axis=None)


def milliseconds(distributed, steps):
    iterator = iter(distributed)
    for _ in range(10):
        step(iterator).numpy()
    times = []
    for _ in range(steps):
        since = time.perf_counter()
        step(iterator).numpy()
        times.append((time.perf_counter() - since) * 1000)
    return statistics.median(times)


def compare_steps(steps):
    elements = tf.data.Dataset.from_tensors(tf.random.normal([GLOBAL_BATCH, 64])).unbatch().cache().repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    ways = {
        "worker.distribute": lambda: worker.distribute(elements, batch=GLOBAL_BATCH),
        "by hand": lambda: strategy.experimental_distribute_dataset(elements.batch(GLOBAL_BATCH).with_options(options)),
    }
    found = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in ways if turn % 2 else reversed(ways):
            found[name].append(milliseconds(ways[name](), steps))
    return found


def bytes_read():
    """What this process has read by system calls: files, and no memory of the page cache that was mapped."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def read(batch, files):
    found = {}
    for policy in ("FILE", "DATA", "OFF"):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        dataset = tf.data.TFRecordDataset(files).batch(batch).with_options(options)
        before, since, elements = bytes_read(), time.perf_counter(), 0
        for per_replica in strategy.experimental_distribute_dataset(dataset):
            elements += sum(int(tf.size(part)) for part in strategy.experimental_local_results(per_replica))
        seconds = time.perf_counter() - since
        found[policy.lower()] = {"bytes": bytes_read() - before, "seconds": seconds, "elements": elements}
    return found


result = compare_steps(int(sys.argv[3])) if what == "steps" else read(int(sys.argv[3]), sys.argv[4:])
(directory / f"{worker.context().task}.json").write_text(json.dumps(result))
