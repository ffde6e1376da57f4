"""How workers wait for each other, with TensorFlow itself: each setting has the effect that docs/tensorflow-knobs.md says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun
from tests.worker.agent_double import ROOT, start_cluster
from tests.worker.template_double import ForkedTask
from worker.protocol.messages import Program
from worker.settings.collective_settings import CollectiveSettings

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Program("script", "s.py")
Fork = Callable[..., ForkedTask]
SAYS = """
import tensorflow as tf
import worker
from tensorflow.python.eager import context

def heartbeat(**own):
    context.context().configure_coordination_service("standalone", **own)
    return context.context().coordination_service.heartbeat_timeout_in_ms

def options_of(strategy):
    found = strategy.extended._communication_options
    return found.timeout_seconds, found.implementation.value, found.bytes_per_pack

def options(**own):
    given = tf.distribute.experimental.CommunicationOptions(**own) if own else None
    return options_of(tf.distribute.MultiWorkerMirroredStrategy(communication_options=given))

print(heartbeat(), heartbeat(heartbeat_timeout_in_ms=700))
print(*options(), *options(timeout_seconds=8.0, implementation="NCCL", bytes_per_pack=9))
print(options() == options_of(worker.strategy()))
"""


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (CollectiveSettings(2.5, 7.0, "ring"), "2500 700\n7.0 RING 0 8.0 NCCL 9\nTrue\n"),
        (CollectiveSettings(heartbeat_s=0.0001), "1 700\nNone AUTO 0 8.0 NCCL 9\nTrue\n"),
    ],
    ids=["all", "a heartbeat too short to be told in milliseconds"],
)
def test_settings_hold_where_the_script_says_nothing(tmp_path: Path, fork_task: Fork, settings: CollectiveSettings, told: str) -> None:
    (tmp_path / "s.py").write_text(SAYS)
    done = fork_task(SCRIPT, tmp_path, strategy="multi_worker_mirrored", collectives=settings).wait()
    assert done.check().out == told


OPTIONS = """
import tensorflow as tf
import worker

def options_of(strategy):
    found = strategy.extended._communication_options
    return found.timeout_seconds, found.implementation.value

print(*options_of(worker.strategy()), *options_of(tf.distribute.MultiWorkerMirroredStrategy()))
"""


def test_a_process_that_a_task_starts_builds_the_strategy_with_the_settings_too(tmp_path: Path, fork_task: Fork) -> None:
    """Nothing of orch has prepared such a process: its own strategy is as TensorFlow makes it."""
    (tmp_path / "child.py").write_text(OPTIONS)
    (tmp_path / "s.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)")
    settings = CollectiveSettings(heartbeat_s=5.0, timeout_s=7.0, implementation="ring")
    env = {"PYTHONPATH": str(ROOT)}
    done = fork_task(SCRIPT, tmp_path, strategy="multi_worker_mirrored", collectives=settings, env=env).wait()
    assert done.check().out == "7.0 RING None AUTO\n"


TRAIN = """
    import os, sys, time
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

    for number in range(1_000_000):
        step()
        if number == 0:
            found = [op for op in step.get_concrete_function().graph.get_operations() if op.type == "CollectiveReduceV2"]
            print("carried out by", *{op.get_attr("communication_hint").decode() for op in found}, flush=True)
        if number == 20 and sys.argv[1:] == ["sleep"] and os.environ["RANK"] == "1":
            time.sleep(1000)
        time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_a_collective_that_waits_too_long_ends_an_unchanged_script(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script(TRAIN, "train.py")
    words = ("--set", "collectives.timeout_s=12", "--set", "collectives.implementation=ring")
    done = orch("up", "train.py", "-n", "2", *words, "--grace", "1", "--", "sleep", timeout=200, check=1)
    # Without the setting this never ends: the sleeping peer goes on sending heartbeats.
    assert "a collective operation timed out" in done.err
    assert "carried out by ring" in done.out
    cause = LiveRun(tmp_path).cause()
    assert (cause["task"], cause["suspect"]) == ("worker-0", "worker-1")


def wait_for(tasks: dict[str, ForkedTask], word: bytes) -> None:
    deadline = time.monotonic() + 200
    while not all(word in (task.log_dir / "stdout.log").read_bytes() for task in tasks.values()):
        assert time.monotonic() < deadline
        assert all(task.process.poll() is None for task in tasks.values())
        time.sleep(0.1)


@pytest.mark.slow
def test_a_short_heartbeat_finds_a_stopped_peer_before_a_long_one_does(
    script: Callable[..., Path], tmp_path: Path, fork_task: Fork
) -> None:
    script(TRAIN, "s.py")
    job = (SCRIPT, tmp_path, "multi_worker_mirrored", "worker", "worker")
    short, long = CollectiveSettings(heartbeat_s=5), CollectiveSettings(heartbeat_s=120)
    with (
        start_cluster(*job, collectives=short, start=fork_task) as led,
        start_cluster(*job, collectives=short, start=fork_task) as leaderless,
        start_cluster(*job, collectives=long, start=fork_task) as patient,
    ):
        for tasks in (led, leaderless, patient):
            wait_for(tasks, b"carried out by")
        # worker-0 runs the coordination service: the two sides of a connection that notice in different ways.
        for tasks, stopped in ((patient, "worker-1"), (led, "worker-1"), (leaderless, "worker-0")):
            os.kill(tasks[stopped].process.pid, signal.SIGSTOP)
        assert "stopped sending heartbeats" in led["worker-0"].wait(200).check(1).err
        assert "CoordinationService/Heartbeat" in leaderless["worker-1"].wait(200).check(1).err
        assert patient["worker-0"].process.poll() is None


LEAVE = """
    import os, time
    from pathlib import Path
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

    step()
    if os.environ["RANK"] == "0":
        log = Path(os.environ["ORCH_RUN_DIR"], "attempt-1", "worker-0", "stderr.log")
        while "stopped sending heartbeats" not in log.read_text():
            time.sleep(0.1)
        saved = tf.train.Checkpoint(weights=weights).save(os.environ["ORCH_CHECKPOINT_DIR"] + "/last")
        print("saved", *tf.train.load_variable(saved, "weights/.ATTRIBUTES/VARIABLE_VALUE"))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_a_worker_that_ends_early_does_not_keep_its_peers_from_saving(orch: Orch, script: Callable[..., Path]) -> None:
    script(LEAVE, "train.py")
    done = orch("up", "train.py", "-n", "2", "--set", "collectives.heartbeat_s=5", timeout=200, check=0)
    assert "saved 1.0 2.0" in done.out
