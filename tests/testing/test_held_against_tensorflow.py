"""What TensorFlow's own tests ask of its multi_process_runner, and a few that use it, asked of `orchestrator.testing`.

The scenarios are those of multi_process_runner_test.py, collective_all_reduce_strategy_test.py, parameter_server_strategy_v2_test.py and
input_lib_test.py in tensorflow/python/distribute, in our words; the test that each comes from is named beside it. TensorFlow's own tests
of deaths by signal skip themselves outside Google; ours run. What `test_cluster.py` asks in other words is not asked again: errors of
a task, kept processes, output, killed tasks and their restart, time-outs with their output, and barriers.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.testing import Cluster, TaskFailed, barrier, cluster

pytestmark = pytest.mark.tensorflow


def own_task() -> tuple[str, int]:
    import json

    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return task["type"], task["index"]


# --- multi_process_runner_test: MultiProcessRunnerTest -------------------------------------------


@pytest.fixture
def pool() -> Iterator[Cluster]:
    """A chief and two workers: the same processes for each test that asks, as MultiProcessPoolRunner's."""
    with cluster(chief=True, workers=2, reuse=True) as c:
        yield c


@pytest.fixture
def two() -> Iterator[Cluster]:
    with cluster(workers=2) as c:
        yield c


def test_every_task_knows_its_type(pool: Cluster) -> None:
    """test_multi_process_runner, test_tf_config. TensorFlow's returns a list in no order; here the results have the tasks' names."""
    assert pool.run(own_task) == {"chief-0": ("chief", 0), "worker-0": ("worker", 0), "worker-1": ("worker", 1)}


def test_a_run_has_no_results_of_the_last(pool: Cluster) -> None:
    """test_multi_process_runner_queue_emptied_between_runs. TensorFlow's leaves None out; here it is a result like any other."""
    assert set(pool.run(lambda: "data").values()) == {"data"}
    assert set(pool.run(lambda: None).values()) == {None}


def test_arguments_arrive(pool: Cluster) -> None:
    """test_multi_process_runner_args_passed_correctly"""

    def gives_back(*args: Any, **kwargs: Any) -> list[Any]:
        return [*args, *kwargs.items()]

    assert pool.run(gives_back, "a", "b", c_k="c_v", on="worker-0") == {"worker-0": ["a", "b", ("c_k", "c_v")]}


def test_the_end_of_the_others_does_not_hide_an_error(two: Cluster) -> None:
    def fails_in_one() -> None:
        if own_task() == ("worker", 0):
            raise ValueError("This is an error.")
        time.sleep(1000)

    job = two.start(fails_in_one)
    while job.tasks["worker-0"].state == "running":
        job.join(0.05)
    two["worker-1"].kill()
    with pytest.raises(ValueError, match=r"This is an error\."):
        job.result()


def test_an_error_goes_before_the_timeout() -> None:
    """test_error_reporting_overrides_timeout_reporting; and nobody waits for the time to run out."""

    def fails_in_one() -> None:
        barrier()
        if own_task() == ("worker", 1):
            time.sleep(1000)
        raise ValueError("Worker 0 errored")

    with cluster(workers=2, timeout=100, grace=1) as c, pytest.raises(ValueError, match="Worker 0 errored") as caught:
        c.run(fails_in_one)
    assert isinstance(caught.value.__cause__, TaskFailed)
    assert "in time.sleep" in caught.value.__cause__.tasks["worker-1"].where


def test_an_exit_code_is_reported(two: Cluster) -> None:
    """test_exit_code_is_reported_by_subprocess; sys.exit is an exception, which TensorFlow's runner turns into the end of the process."""
    with pytest.raises(TaskFailed, match="worker-1: exit code 10"):
        two.run(lambda: os._exit(10), on="worker-1")
    with pytest.raises(TaskFailed, match="worker-0: SystemExit: 20"):
        two.run(lambda: sys.exit(20), on="worker-0")


def test_a_segmentation_fault_is_an_error() -> None:
    """test_seg_fault_raises_error, test_seg_fault_in_chief_raises_error: nobody waits for the worker that sleeps."""

    def faults() -> None:
        if own_task()[0] == "worker":
            time.sleep(1000)
        ctypes.string_at(0)

    with cluster(chief=True, workers=1, grace=0) as c:
        with pytest.raises(TaskFailed, match="chief-0: SIGSEGV"):
            c.run(faults)
        assert "Segmentation fault" in c.logs("chief-0")


# --- collective_all_reduce_strategy_test ---------------------------------------------------------


@pytest.fixture
def mirrored() -> Iterator[Cluster]:
    """Two workers that keep their strategy."""
    with cluster(workers=2, reuse=True) as c:
        yield c


def test_variables_begin_alike(mirrored: Cluster) -> None:
    """testVariableInitialization: a random initial value is the first worker's, everywhere."""

    def makes_one(strategy: Any) -> Any:
        import tensorflow as tf

        with strategy.scope():
            x = tf.Variable(tf.random.uniform((2, 3), 1.0, 10.0))
        return x, strategy.reduce("MEAN", strategy.run(lambda: tf.identity(x)), axis=None)

    (own, mean), (others, _) = mirrored.run(makes_one).values()
    assert own.tolist() == others.tolist()
    assert mean == pytest.approx(own)


def test_sums_and_means_of_all_replicas(mirrored: Cluster) -> None:
    """testAllReduceSum, testAllReduceMean, testAllReduceSumGradientTape"""

    def reduces(strategy: Any) -> tuple[float, float, float]:
        import tensorflow as tf

        def gradient() -> Any:
            context = tf.distribute.get_replica_context()
            x = 3.0 + tf.cast(context.replica_id_in_sync_group, tf.float32)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return context.all_reduce("SUM", tape.gradient(y, x))

        def number() -> Any:
            return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32)

        values = strategy.run(number)
        total, mean = (strategy.reduce(how, values, axis=None) for how in ("SUM", "MEAN"))
        return float(total), float(mean), float(strategy.experimental_local_results(strategy.run(gradient))[0])

    assert set(mirrored.run(reduces).values()) == {(3.0, 1.5, 14.0)}


def test_a_loss_gets_smaller(mirrored: Cluster) -> None:
    """testMinimizeLossGraph: ten steps of descent, and every worker has the same kernel at the end."""

    def descends(strategy: Any) -> tuple[float, float]:
        import tensorflow as tf

        with strategy.scope():
            kernel = tf.Variable(0.1)

        @tf.function  # type: ignore[untyped-decorator]
        def step() -> Any:
            def of_replica() -> None:
                with tf.GradientTape() as tape:
                    loss = tf.square(kernel - 1.0)
                total = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, kernel))
                kernel.assign_sub(0.05 * total)

            strategy.run(of_replica)

        before = float(kernel)
        for _ in range(10):
            step()
        return abs(before - 1), abs(float(kernel) - 1)

    (before, after), other = mirrored.run(descends).values()
    assert after < before
    assert (before, after) == other


# --- input_lib_test --------------------------------------------------------------------------------


def of_this_worker(strategy: Any, batch: Any) -> list[int]:
    return [int(x) for part in strategy.experimental_local_results(batch) for x in part]


@pytest.mark.parametrize(("policy", "wanted"), [("DATA", [[0, 2], [1, 3]]), ("OFF", [[0, 1, 2, 3], [0, 1, 2, 3]])])
def test_autosharding(mirrored: Cluster, policy: str, wanted: list[list[int]]) -> None:
    """testAutoshardingOption: each worker's share of 0..3, or all of it."""

    def reads(strategy: Any) -> list[int]:
        import tensorflow as tf

        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
        dataset = tf.data.Dataset.range(4).batch(2).with_options(options)
        return [x for batch in strategy.experimental_distribute_dataset(dataset) for x in of_this_worker(strategy, batch)]

    assert list(mirrored.run(reads).values()) == wanted


def test_a_function_knows_its_pipeline(mirrored: Cluster) -> None:
    """testOneDevicePerWorker with an input function: number and index of the pipelines, and the batch of one replica."""

    def reads(strategy: Any) -> tuple[int, int, int]:
        import tensorflow as tf

        seen = []

        def make(context: Any) -> Any:
            seen.append((context.num_input_pipelines, context.input_pipeline_id, context.get_per_replica_batch_size(8)))
            return tf.data.Dataset.range(4)

        next(iter(strategy.distribute_datasets_from_function(make)))
        (found,) = seen
        return found

    assert mirrored.run(reads) == {"worker-0": (2, 0, 4), "worker-1": (2, 1, 4)}


def test_the_last_batch_may_be_uneven(mirrored: Cluster) -> None:
    """testUnevenDatasetBatches: of nine elements in global batches of four the last goes to one replica, and the other gets none."""

    def reads(strategy: Any) -> list[list[int]]:
        import tensorflow as tf

        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        dataset = tf.data.Dataset.range(9).batch(4).with_options(options)
        return [of_this_worker(strategy, batch) for batch in strategy.experimental_distribute_dataset(dataset)]

    found = mirrored.run(reads)
    assert found == {"worker-0": [[0, 1], [4, 5], [8]], "worker-1": [[2, 3], [6, 7], []]}


# --- parameter_server_strategy_v2_test -------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[Cluster]:
    """A chief, a worker and two parameter servers; the same for all tests."""
    with cluster(chief=True, workers=1, ps=2, strategy="parameter_server", reuse=True) as c:
        yield c


def test_variables_go_round_the_parameter_servers(served: Cluster) -> None:
    """testVariablePlacement, testInteractionWithDeviceScope: what is made in the scope is placed in turn, whatever tf.device says."""

    def places(strategy: Any) -> list[str]:
        import tensorflow as tf

        outside = tf.Variable(0.0)
        with strategy.scope():
            first = tf.Variable(1.0)
            with tf.device("/job:ps/replica:0/task:0"):
                second = tf.Variable(2.0)
            third = tf.Variable(3.0)
        return [v.device for v in (outside, first, second, third)]

    chief, *ps = served.run(places)["chief-0"]
    assert chief.startswith("/job:chief/")
    assert [device.split("task:")[1][0] for device in ps] == ["0", "1", "0"]
    assert all(device.startswith("/job:ps/") for device in ps)


def test_a_variable_is_cut_into_shards(served: Cluster) -> None:
    def cuts() -> tuple[list[Any], list[str], int]:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
        strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
        with strategy.scope():
            v = tf.Variable(lambda: tf.reshape(tf.range(10, dtype=tf.int64), (5, 2)), shape=(5, 2), dtype=tf.int64)
        return [part.numpy().tolist() for part in v.variables], [part.device for part in v.variables], len(v.variables)

    parts, devices, count = served.run(cuts)["chief-0"]
    assert parts == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    assert [device.split("/")[3] for device in devices] == ["task:0", "task:1"]
    assert count == 2


def test_a_distributed_dataset_is_not_read_in_the_coordinator(served: Cluster) -> None:
    def reads(strategy: Any) -> None:
        import tensorflow as tf

        iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(3)))

    with pytest.raises(ValueError, match="ClusterCoordinator"):
        served.run(reads)


def test_scheduled_functions_run_on_the_worker(served: Cluster) -> None:
    """ClusterCoordinatorTest: what is scheduled updates a variable on a parameter server."""

    def adds(strategy: Any) -> int:
        import tensorflow as tf

        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            v = tf.Variable(0, dtype=tf.int64)

        @tf.function  # type: ignore[untyped-decorator]
        def step() -> Any:
            v.assign_add(1)

        for _ in range(5):
            coordinator.schedule(step)
        coordinator.join()
        return int(v)

    assert served.run(adds) == {"chief-0": 5}
