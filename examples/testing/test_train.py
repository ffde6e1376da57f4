"""Tests of train.py with real clusters: `pytest` in this directory runs them.

They need `pip install -e '.[tensorflow-cpu,examples,testing]'`, in the directory of orch.
"""

import numpy as np
import pytest
import train

from orchestrator.testing import TaskFailed

pytestmark = pytest.mark.orch(timeout=120)


@pytest.fixture(scope="module")
def data():
    return train.load_digits()


@pytest.fixture(scope="module")
def alone(data):
    """What one process learns in ten steps."""
    import tensorflow as tf

    return train.train(tf.distribute.get_strategy(), *data, steps=10)


@pytest.mark.orch(workers=[1, 2])
def test_workers_learn_what_one_process_learns(orch_cluster, data, alone):
    """The same global batches: so the same losses, and the same weights in every worker."""
    for trained in orch_cluster.run(train.train, *data, steps=10).values():
        np.testing.assert_allclose(trained["losses"], alone["losses"], rtol=1e-4)
        np.testing.assert_allclose(trained["weights"], alone["weights"], atol=1e-5)


@pytest.mark.orch_everywhere(workers=2, reuse=True)
def test_a_worker_reads_its_share_of_each_batch(strategy, data):
    """The body of this test runs in both workers."""
    dataset = strategy.experimental_distribute_dataset(train.make_dataset(*data))
    images, digits = (strategy.experimental_local_results(part)[0] for part in next(iter(dataset)))
    first = 30 * (strategy.cluster_resolver.task_id)
    assert images.shape == (train.GLOBAL_BATCH // 2, 64)
    np.testing.assert_array_equal(digits, data[1][first : first + 30])


def test_a_worker_that_dies_in_step_3_is_the_reason(orch_cluster, data):
    """The other worker waits for it in an all-reduce: it does not hang for ever, and the report says where it was."""
    with orch_cluster(workers=2) as c:
        job = c.start(train.train, *data, steps=1_000_000)
        c.wait_for("worker-1", report={"step": 3})
        c["worker-1"].kill()
        with pytest.raises(TaskFailed, match="worker-1: SIGKILL"):
            job.result()


def test_the_script_learns_the_digits(orch_run):
    run = orch_run("train.py", "--steps", 200, workers=2)
    assert run.exit_code == 0, run.report
    assert "accuracy 0.9" in run.logs["worker-0"]
    assert run.reports["worker-0"]["step"] == run.reports["worker-1"]["step"] == 200
