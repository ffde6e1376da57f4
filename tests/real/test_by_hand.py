"""Nothing that orch sets by itself makes a script hang or fail that runs by hand: scripts as TensorFlow's guides have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Orch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

PARAMETER_SERVER = """
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
        )
        server.join()

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4, 1]))

    def make_dataset(context):
        inputs = tf.data.Dataset.range(64).map(lambda i: tf.fill([4], tf.cast(i, tf.float32) / 64.0), num_parallel_calls=tf.data.AUTOTUNE)
        return inputs.shuffle(64).repeat().batch(8).prefetch(tf.data.AUTOTUNE)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def make_worker_dataset():
        return strategy.distribute_datasets_from_function(make_dataset)

    iterator = iter(coordinator.create_per_worker_dataset(make_worker_dataset))

    @tf.function
    def train_step(iterator):
        def replica_step(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.matmul(inputs, weights) - 1.0) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return strategy.reduce("sum", strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for epoch in range(2):
        for _ in range(10):
            loss = coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
    print("trained:", float(loss.fetch()) < 1.0)
"""
"""The custom training loop of https://www.tensorflow.org/tutorials/distribute/parameter_server_training."""


@pytest.fixture
def one_core() -> Iterator[None]:
    """What is started has one core, as in a small container; TensorFlow by itself then makes one inter-op thread."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("NOT TESTED: this platform ties nobody to cores")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("one_core")
def test_a_parameter_server_cluster_trains_on_one_core(orch: Orch, script: Callable[..., Path]) -> None:
    script(PARAMETER_SERVER, "train.py")
    done = orch("up", "train.py", "-n", "2", "--ps", "1", "--timeout", "150", timeout=200, check=0)
    assert "chief-0  | trained: True\n" in done.out
