"""The goodput of a real training with a restart, beside the times of its steps that the program itself wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.run_directory import RunDir
from orchestrator.views.story_gather import gather

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

RESTARTS = """
import os, signal, sys, time
import keras, numpy as np, tensorflow as tf

TASK, ATTEMPT = os.environ["ORCH_TASK"], os.environ["ORCH_ATTEMPT"]
times = open(f"{TASK}.times", "a", buffering=1)

class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(ATTEMPT, time.time(), file=times)
        time.sleep(0.2)
        if (TASK, ATTEMPT, batch) == ("worker-1", "1", 24):
            os.kill(os.getpid(), signal.SIGKILL)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(48), steps_per_epoch=60, verbose=0, callbacks=[Note()])
time.sleep(12)
"""


def test_the_time_of_a_restarted_training_is_where_its_program_saw_it(orch: Any, tmp_path: Path) -> None:
    """The first attempt, without a checkpoint, is done again; the twelve seconds after the last step train nothing."""
    (tmp_path / "train.py").write_text(RESTARTS)
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    orch("up", "train.py", "-n", "2", "--max-restarts", "1", timeout=250, check=0, env=env)
    lines = [line.split() for line in (tmp_path / "worker-0.times").read_text().splitlines()]
    steps = {number: [float(at) for attempt, at in lines if attempt == number] for number in ("1", "2")}
    (shown,) = json.loads(orch("ps", "--sort", "goodput", "--json", check=0).out)
    found = shown["goodput"]
    seconds, whole = found["seconds"], sum(found["seconds"].values())
    print(seconds, {number: times[-1] - times[0] for number, times in steps.items()})
    assert found["unknown"] == []
    assert seconds["trained"] == pytest.approx(steps["2"][-1] - steps["2"][0], abs=2.5)
    assert seconds["done_again"] == pytest.approx(steps["1"][-1] - steps["1"][0], abs=2.5)
    story = gather(RunDir(Path(shown["directory"])))
    assert seconds["no_step"] == pytest.approx(story.ended - steps["2"][-1], abs=2.5)
    assert seconds["no_step"] > 9.5
    assert seconds["compiled"] > 0.3
    assert found["share"] == pytest.approx((steps["2"][-1] - steps["2"][0]) / whole, abs=0.05)
    assert whole == pytest.approx(story.ended - story.begun, abs=0.01)
