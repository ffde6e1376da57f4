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
    done = orch("up", "train.py", "-n", "3", "--set", "timeouts.grace_s=1", "--", "leave", "0", timeout=200, check=1)
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
    running = orch.start("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", "--", "stall", "1")
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
    done = orch("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", timeout=200, check=1)
    assert "Could not start gRPC server\n" in report(done.err)
    assert "fix: leave TF_CONFIG to orch: the task had another one (train.py:3 set it)" in report(done.err)


def test_calls_that_only_the_chief_makes_are_named_with_the_line_of_each_worker(orch: Orch, script: Script) -> None:
    text = """
import os, keras, numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.ones((64, 4), "float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
class Test(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if os.environ["RANK"] == "0":
            model.evaluate(x, x[:, :1], verbose=0)
model.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=[Test()])
"""
    script(text, "train.py")
    text = report(orch("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", timeout=200, check=1).err)
    places = text.partition("orch:   where the tasks were:\n")[2].splitlines()[:2]
    assert "worker-0: train.py:11 in on_epoch_end: model.evaluate(x, x[:, :1], verbose=0)" in places[0], text
    assert "worker-1: train.py:12 in <module>: model.fit(" in places[1] or "worker-1: in fit (train.py:12)" in places[1], text
    assert "let all workers call" in text


def test_a_loop_that_a_worker_leaves_by_its_own_loss_is_told_to_reduce_it(orch: Orch, script: Script) -> None:
    script(TRAIN.replace("number == 20", "number == 200"), "train.py")
    text = report(orch("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", "--", "leave", "1", timeout=200, check=1).err)
    assert text.startswith("first failure: worker-1 on local: it ended by itself (exit code 0)")
    assert "if a loss ends the loop, reduce it" in text
