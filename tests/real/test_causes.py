"""The first cause with real TensorFlow clusters: what a survivor says of a lost peer is read, and the peer is named.

tests/model/cause/lost_peers.json holds what 28 such clusters have said; here orch is held to it from end to end, in the two ways
that TensorFlow explains worst.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.usefixtures("warm_tensorflow")]

Script = Callable[..., Path]
TRAIN = """
    import os, sys, time
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

    def load():
        time.sleep(1000)

    for number in range(100_000):
        step()
        if number == 0:
            print("first step", flush=True)
        if number == 20 and os.environ["RANK"] == sys.argv[2]:
            sys.exit(0) if sys.argv[1] == "leave" else load()
        time.sleep(0.02)
"""


def report(err: str) -> str:
    return err[err.index("first failure") :]


def test_a_worker_that_leaves_early_is_named_though_only_its_peers_have_failed(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(TRAIN, "train.py")
    done = orch("up", "train.py", "-n", "3", "--grace", "1", "--", "leave", "0", timeout=200, check=1)
    assert report(done.err).startswith(
        "first failure: worker-0 on local: it ended by itself (exit code 0) while its peers still needed it\n"
    )
    cause = LiveRun(tmp_path).cause()
    assert (cause["task"], cause["code"]) == ("worker-0", 0)
    assert cause["secondary"]
    assert all(end["lost"].startswith("worker-0 (") for end in cause["secondary"])


@pytest.mark.core
def test_a_worker_that_was_stopped_is_the_suspect_and_the_report_says_where_it_was(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(TRAIN, "train.py")
    running = orch.start("up", "train.py", "-n", "2", "--grace", "1", "--", "stall", "1")
    for task in (0, 1):
        running.wait_for(f"worker-{task} | first step", timeout=150)
    os.kill(LiveRun(tmp_path).event("task_started", task="worker-1")["pid"], signal.SIGSTOP)
    text = report(running.wait(check=1).err)
    assert text.startswith(
        "first failure: worker-0 on local: exit code 1; "
        "it failed because it lost worker-1 (it stopped sending heartbeats), which was stopped (SIGSTOP)\n"
    )
    assert "orch:   where the tasks were:\norch:     worker-1: in " in text
    assert "stopped because of it: worker-1\n" in text


def test_two_workers_with_one_tf_config_of_their_own_are_told_where_it_was_set(orch: Orch, script: Script) -> None:
    """As a script of a tutorial's has it in which the task was not changed: TensorFlow says no more than "Could not start gRPC server"."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        addresses = [f"localhost:{each.getsockname()[1]}" for each in (one, other)]
    text = f"""
import json, os
os.environ["TF_CONFIG"] = json.dumps({{"cluster": {{"worker": {addresses}}}, "task": {{"type": "worker", "index": 0}}}})
import tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
"""
    script(text, "train.py")
    done = orch("up", "train.py", "-n", "2", "--grace", "1", timeout=200, check=1)
    assert "Could not start gRPC server\n" in report(done.err)
    assert "what to do: leave TF_CONFIG to orch: the task's was not the one that orch gave it (train.py:3 set it)" in report(done.err)
