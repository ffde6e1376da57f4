"""What TensorFlow's own tests ask of its multi_process_runner, asked of `orchestrator.testing`.

The scenarios are those of multi_process_runner_test.py in tensorflow/python/distribute, in our words; the test that each comes from is
named beside it. TensorFlow's own tests of deaths by signal skip themselves outside Google; ours run. What `test_cluster.py` asks in other
words is not asked again: errors of a task, kept processes, output, killed tasks, time-outs with their output, and barriers.
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
