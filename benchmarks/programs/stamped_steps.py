"""A training step on two workers, with all that orch adds to it and without: CPU time in short turns, and nodes of the graph.

A turn is a few steps of one kind; a pair is a turn of each kind, one right after the other, and every second pair begins with the other
kind. The last line that each worker prints is a JSON object. The arguments: how many pairs, and the width and the batch of the model.
"""

import json
import sys
import time

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

from worker.task.observe import step_times
from worker.task.patches.stand_in import FEATURE

STEPS, WARM = 5, 20
"""The steps of a turn, and the turns that are not counted: TensorFlow learns in some 90 steps which operations are not worth a thread."""
ROUNDS, WIDTH, BATCH = map(int, sys.argv[1:])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [1, layer]) / WIDTH**0.5) for layer in range(4)]
batch = tf.random.stateless_normal([BATCH, WIDTH], [2, 0])


def replica_step():
    with tf.GradientTape() as tape:
        value = batch
        for weight in weights:
            value = tf.tanh(value @ weight)
        loss = tf.reduce_mean(value**2)
    gradients = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, weights))
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(1e-3 * gradient)
    return loss


def make_step():
    """A new graph of the step."""
    step = tf.function(lambda: strategy.reduce("SUM", strategy.run(replica_step), axis=None))
    step()
    graph = step.get_concrete_function().graph
    inner = (function.graph for function in graph._functions.values() if hasattr(function, "graph"))
    return step, sum(len(one.get_operations()) for one in (graph, *inner))


stamped, stamped_nodes = make_step()
names = ("all_reduce", "_all_gather")
replaced = {name: getattr(CollectiveReplicaLauncher, name) for name in names}
for name, function in replaced.items():
    assert hasattr(function, FEATURE), "orch puts no timestamps around the collectives"
    setattr(CollectiveReplicaLauncher, name, function.__wrapped__)
plain, plain_nodes = make_step()

used = {"stamped": [], "plain": []}
number = 0
for turn in range(ROUNDS + WARM):
    kinds = [("stamped", stamped), ("plain", plain)]
    for kind, step in kinds if turn % 2 else kinds[::-1]:
        began = time.process_time()
        for _ in range(STEPS):
            step()
            number += 1
            if kind == "stamped":
                step_times.mark(number)  # as `fit` and `worker.report(step=...)` do
        if turn >= WARM:
            used[kind].append((time.process_time() - began) / STEPS)
print(json.dumps({**used, "stamped_nodes": stamped_nodes, "plain_nodes": plain_nodes}), flush=True)
