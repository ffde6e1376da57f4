"""The task's runtime with TensorFlow itself: strategies, servers, devices. The clusters are started by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, Outcome, run_plainly, run_task, start_cluster
from worker.contract import DeviceSettings, Program, TaskId, tf_config_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Program("script", "s.py")


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.py").write_text(text)


def test_two_workers_reduce_under_the_strategy_of_the_spec(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import worker
strategy = worker.strategy()
assert worker.strategy() is strategy
import tensorflow as tf
def step():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0 + worker.context().index))
total = strategy.run(tf.function(step))
worker.report(step=1, total=total)
print(isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy), strategy.num_replicas_in_sync, float(total))
""",
    )
    with start_cluster(SCRIPT, tmp_path, "multi_worker_mirrored", "worker", "worker") as tasks:
        outcomes = [task.wait(200).check() for task in tasks.values()]
    assert [outcome.out for outcome in outcomes] == ["True 2 3.0\n"] * 2
    assert [json.loads((outcome.log_dir / "reports.jsonl").read_bytes())["total"] for outcome in outcomes] == [3.0, 3.0]


ONE_SCRIPT_FOR_ALL_ROLES = """
import worker
strategy = worker.strategy()
print("only the chief comes here:", worker.context().task)
import tensorflow as tf
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
print(total.device)
@tf.function
def step():
    total.assign_add(1.0)
for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
print(total.numpy())
"""
CHIEF_SAYS = "only the chief comes here: chief-0\n/job:ps/replica:0/task:0/device:CPU:0\n20.0\n"


@pytest.mark.parametrize("servers", [SCRIPT, Program("serve")], ids=["the same script", "serve"])
def test_a_parameter_server_cluster(tmp_path: Path, servers: Program) -> None:
    write(tmp_path, ONE_SCRIPT_FOR_ALL_ROLES)
    with start_cluster(SCRIPT, tmp_path, "parameter_server", "chief", "worker", "worker", "ps", servers=servers) as tasks:
        assert tasks["chief-0"].wait(200).check().out == CHIEF_SAYS
        # They never end by themselves, and they end by SIGTERM.
        for name in ("worker-0", "worker-1", "ps-0"):
            task = tasks[name]
            assert task.process.poll() is None
            task.process.terminate()
            assert task.wait().check(-15).out == ""


@pytest.mark.parametrize("strategy", ["mirrored", "none", "one_device"])
def test_logical_cpus(tmp_path: Path, strategy: str) -> None:
    write(
        tmp_path,
        """
import worker, tensorflow as tf
strategy = worker.strategy()
print(strategy.num_replicas_in_sync, len(tf.config.list_logical_devices("CPU")))
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print(float(strategy.experimental_local_results(total)[0]))
""",
    )
    outcome = run_task(SCRIPT, tmp_path, strategy=strategy, devices=DeviceSettings(cpus=4), env={"CUDA_VISIBLE_DEVICES": "-1"}).check()
    replicas = 4 if strategy == "mirrored" else 1
    assert outcome.out == f"{replicas} 4\n{float(replicas)}\n"


def test_an_evaluator_computes_alone(tmp_path: Path) -> None:
    write(tmp_path, "import worker\nprint(worker.strategy().num_replicas_in_sync, worker.context().is_chief)")
    for strategy in ("multi_worker_mirrored", "parameter_server"):
        outcome = run_task(
            SCRIPT,
            tmp_path,
            task="evaluator-0",
            strategy=strategy,
            tf_config=tf_config_text('{"evaluator": ["127.0.0.1:1"]}', TaskId("evaluator", 0)),
        )
        assert outcome.check().out == "1 False\n"


def test_by_hand_it_is_tensorflows_default(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import worker, tensorflow as tf\nassert worker.strategy() is tf.distribute.get_strategy()",
    )
    run_plainly(["s.py"], tmp_path, env={"PYTHONPATH": str(ROOT)}).check()


def refused(tmp_path: Path, **settings: object) -> Outcome:
    write(tmp_path, "print('never')")
    outcome = run_task(SCRIPT, tmp_path, **settings).check(1)
    assert outcome.out == ""
    assert outcome.failure is not None
    assert outcome.err.splitlines()[-1] == f"orch: {outcome.failure.message}"
    assert outcome.failure.type.endswith("SettingRefused")
    return outcome


def test_a_setting_that_comes_too_late_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("import tensorflow as tf\ntf.constant(1) + 1\n")
    outcome = refused(tmp_path, devices=DeviceSettings(cpus=3), start=late_start(tmp_path))
    assert outcome.err.splitlines()[-1].startswith("orch: devices.cpus: 3 was refused by TensorFlow, or came too late: ")


def late_start(tmp_path: Path) -> Path:
    """The real start, after somebody else has used TensorFlow's runtime in this process."""
    path = tmp_path / "late_start.py"
    start = ROOT / "worker" / "task" / "start.py"
    path.write_text(f"import early, runpy, sys\nsys.path.insert(0, '')\nrunpy.run_path({str(start)!r}, run_name='__main__')\n")
    return path


def test_a_setting_without_tensorflow_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('there is no TensorFlow')\n")
    outcome = refused(tmp_path, devices=DeviceSettings(cpus=2))
    assert "devices.cpus: 2 needs TensorFlow, which " in outcome.err
    assert outcome.err.endswith("cannot import: there is no TensorFlow\n")
