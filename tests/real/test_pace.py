"""Three workers of Keras's `fit`: the one that works longer is named, and the one that does not come."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record import samples
from orchestrator.testing import cluster
from tests.conftest import Orch
from tests.live import LiveRun, wait_until
from tests.worker.agent_double import ROOT
from worker.protocol.messages import TaskUse

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900), pytest.mark.usefixtures("warm_tensorflow")]

TRAIN = """
import os, time
import numpy as np
import tensorflow as tf
import keras

class Sleep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.path.exists("slow") and os.environ["ORCH_TASK"] == "worker-2":
            time.sleep(0.05)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
# A last batch that is smaller: the workers tell each other in each step whether they have data.
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(48)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(data, steps_per_epoch=10**9, verbose=0, callbacks=[Sleep()])
"""


def uses_of(run: LiveRun) -> dict[str, TaskUse]:
    return {use.task: use for sample in samples.read_latest(run.path).values() for use in sample.tasks}


SLOW = re.compile(r"^worker-\d (?:is slower|waits for its input): ")


def notes(run: LiveRun) -> list[str]:
    return [event["text"] for event in run.events() if event["event"] == "run_noted" and SLOW.search(event["text"])]


def look(orch: Orch) -> tuple[str, dict[str, str]]:
    """The alert of `orch top`, and the state of each task."""
    lines = orch("top", "--once", check=0).out.splitlines()
    return lines[2], {line.split()[0]: line.split()[1] for line in lines if line.startswith("worker-") and "%" in line}


@pytest.mark.slow
@pytest.mark.soak
def test_the_task_for_which_the_others_wait_is_named(orch: Orch, run: LiveRun, tmp_path: Path, soaks: bool) -> None:
    """Before, all are even, and none is named: in one attempt, or in ten that last longer than it takes to name a slow one."""
    (tmp_path / "train.py").write_text(TRAIN)
    going = orch.start("up", "train.py", "-n", "3", "--hang-timeout", "30", "--set", "collectives.heartbeat_s=600")
    last, windows = (10, 15) if soaks else (1, 5)
    for attempt in range(1, last + 1):
        if attempt > 1:
            orch("restart", check=0)
        wait_until(
            lambda attempt=attempt: [use.window >= windows for use in uses_of(run).values() if use.attempt == attempt] == [True] * 3,
            f"windows of steps in attempt {attempt}",
        )
        assert notes(run) == []
    begun = {name: use.window for name, use in uses_of(run).items()}

    (tmp_path / "slow").touch()
    wait_until(lambda: notes(run), "line about the slow task")
    (line,) = notes(run)
    assert line.startswith("worker-2 is slower: ")
    uses = uses_of(run)
    assert all(uses[name].window > begun[name] for name in uses)
    assert uses["worker-2"].work > 0.05
    assert uses["worker-2"].work > uses["worker-0"].work + 0.03
    assert uses["worker-0"].peers > uses["worker-2"].peers + 0.03
    assert look(orch)[1]["worker-2"] == "slow"
    # The workers meet while they get their batches: that is no wait for input.
    assert max(use.input for use in uses.values()) < 0.03

    profiled = orch("profile", "--for", "500ms", check=0)
    assert "orch: note: worker-1..2 left out: TensorFlow " in profiled.err
    assert len(profiled.out.splitlines()) == 1
    (profile,) = (run.path / "profile/plugins/profile").glob("*/worker-0.xplane.pb")
    # TensorFlow's message XSpace; its texts stand in it as they are: the plane of the host, and operations of a step.
    for name in (b"/host:CPU", b"CollectiveReduceV2", b"MatMul"):
        assert name in profile.read_bytes()
    reached = uses_of(run)["worker-1"].step
    wait_until(lambda: uses_of(run)["worker-1"].step > reached + 20, "steps after the profile")

    os.kill(run.event("task_started", task="worker-2", attempt=last)["pid"], signal.SIGSTOP)
    wait_until(lambda: uses_of(run)["worker-2"].state == "T", "stopped task")
    wait_until(lambda: min(uses_of(run)[name].waits for name in ("worker-0", "worker-1")) > 2, "waiting tasks")
    missing = "worker-2 (stopped by SIGSTOP) did not come: worker-0..1 wait for it after step "
    assert missing in orch("stacks").out
    alert, states = look(orch)
    assert alert.startswith(missing)
    assert states == {"worker-0": "waits", "worker-1": "waits", "worker-2": "SIGSTOP"}
    table = orch("ps", check=0).out
    assert f"\n{missing}" in table
    rows = [line.split() for line in table.splitlines() if line.startswith("worker-") and " local " in line]
    assert [row[2] for row in rows] == ["waits", "waits", "missing"]
    assert "steps_per_s" not in table  # that was before
    going.wait(check=124)
    assert missing in run.cause()["what"]
    (told,) = [event["text"] for event in run.events() if event["event"] == "run_noted" and event["text"].startswith(missing)]
    assert told.endswith(" s now (orch stacks shows where each task is)")
    assert len(notes(run)) == 1


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="NOT TESTED: scikit-learn is not installed here (pip install 'orch-tf[examples]')"
)
def test_a_loop_of_ones_own_that_reads_slowly_is_named(orch: Orch, run: LiveRun, tmp_path: Path) -> None:
    """The example of docs/faster.md."""
    words = ("--steps", "1000000", "--slow-input", "0.05")
    orch.start("up", str(ROOT / "examples/who_waits.py"), "-n", "2", "--", *words, env={"ORCH_EXAMPLES_DATA": str(tmp_path)})
    wait_until(lambda: notes(run), "line about the slow task")
    (line,) = notes(run)
    assert line.startswith("worker-1 waits for its input: ")
    uses = uses_of(run)
    assert uses["worker-1"].input > uses["worker-0"].input + 0.02
    assert uses["worker-0"].peers > uses["worker-1"].peers + 0.02
    orch("down", check=0)


BLOCKED = """
import os, sys, time
import numpy as np
import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
blocks = strategy.cluster_resolver.task_id == 1 or sys.argv[2] == "all"

def examples():
    for number in range(1 << 20):
        while blocks and number > 60:
            time.sleep(0.1)
        yield np.full(2, number % 7, np.float32), np.full(1, number % 5, np.float32)

signature = (tf.TensorSpec((2,)), tf.TensorSpec((1,)))
data = tf.data.Dataset.from_generator(examples, output_signature=signature).batch(4)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = data.with_options(options)
if sys.argv[1] == "fit":
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(data, steps_per_epoch=1000, verbose=0)
else:
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.reduce("SUM", strategy.run(lambda x: tf.reduce_sum(x[0]), args=(batch,)), axis=None)
"""


@pytest.mark.parametrize(("how", "who"), [("fit", "one"), ("loop", "one"), ("fit", "all")])
def test_a_task_that_is_blocked_in_its_input_is_named_as_such(orch: Orch, run: LiveRun, tmp_path: Path, how: str, who: str) -> None:
    (tmp_path / "train.py").write_text(BLOCKED)
    going = orch.start("up", "train.py", "-n", "2", "--hang-timeout", "20", "--set", "collectives.heartbeat_s=600", "--", how, who)
    words = "worker-0..1 wait for their input" if who == "all" else "worker-1 waits for its input, and worker-0 waits for it"
    wait_until(lambda: words in orch("stacks", check=None).out, "line about the input")
    assert f"\n{words}" in orch("ps", check=0).out
    assert "; its generator or py_function is in time.sleep (train.py:13)" in orch("stacks", check=None).out
    states = look(orch)[1]
    assert states == {"worker-0": "input" if who == "all" else "waits", "worker-1": "input"}
    going.wait(check=124)
    assert words in run.cause()["what"]


def fit_deterministically() -> list[float]:
    import keras
    import numpy as np
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x: Any = np.ones((8, 2), np.float32)
    return [float(loss) for loss in model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history["loss"]]


def test_where_tensorflow_refuses_timestamps_none_are_taken() -> None:
    with cluster(workers=2) as c:
        first, second = c.run(fit_deterministically).values()
    assert first == second


HANG = """
import os, re, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_odd = os.environ["ORCH_TASK"] == "worker-1"
while is_odd and not os.path.exists("go"):
    time.sleep(0.1)
with strategy.scope():
    total = tf.Variable(1.0)
    another = tf.Variable(1.0)

@tf.function
def step():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

while True:
    step()
    if is_odd and os.path.exists("stick"):
        re.match(r"(a+)+$", "a" * 60 + "b")  # keeps the interpreter's lock
"""


def test_hangs_before_the_first_step_and_with_the_lock_of_python_are_named(orch: Orch, run: LiveRun, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG)
    going = orch.start("up", "train.py", "-n", "2", "--set", "collectives.heartbeat_s=600")
    awaited = "worker-1 did not come: worker-0 waits for it"
    wait_until(lambda: awaited in orch("ps", check=0).out, "line before the first variable")
    (tmp_path / "go").touch()
    wait_until(lambda: awaited not in orch("ps", check=0).out, "steps")
    (tmp_path / "stick").touch()
    wait_until(lambda: awaited in orch("ps", check=0).out, "line about the second hang")
    orch("down", "--now", check=None)
    going.wait(check=None)
