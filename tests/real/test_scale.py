"""`orch scale` with real trainings: the bound is named, and the script saves nothing. A sleep stands in for what would take cores.

The sleeps are many times as long as what a busy machine adds to a step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import ROOT, Orch

PROGRAM = str(ROOT / "tests/programs/bounds.py")
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
FIT = """
import os, sys
import keras, numpy as np, tensorflow as tf, worker

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")

class Saves(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save("model.keras")
        self.model.save_weights("model.weights.h5")
        self.model.export("exported", verbose=False)
        tf.train.Checkpoint(model=self.model).save("saves/one")
        tf.train.CheckpointManager(tf.train.Checkpoint(model=self.model), "managed", 1).save()
        print("an epoch", flush=True)

with strategy.scope():
    model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
own = [keras.callbacks.ModelCheckpoint("best.keras"), keras.callbacks.TensorBoard("logs"), keras.callbacks.CSVLogger("log.csv")]
own += [keras.callbacks.EarlyStopping("loss", patience=0), worker.KerasCheckpoint(dir="exact"), Saves()]
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(24)
model.fit(data, epochs=2, verbose=0, callbacks=own, validation_data=data)
raise SystemExit("fit has ended by itself")
"""
APART = """
import time, tensorflow as tf, worker

step = tf.function(lambda value: value + 1)
for number in range(10**6):
    step(tf.constant(1.0))
    time.sleep(0.05)
    worker.report(step=number)
"""
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]


def measure(orch: Orch, *words: str, program: str = PROGRAM) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(orch("scale", program, "--json", "--seconds", "3", *words, timeout=500, check=0, env=ENV).out)
    print("\n".join(found["text"]))
    return found


def test_python_between_the_steps_is_named_on_one_machine(orch: Orch, tmp_path: Path) -> None:
    found = measure(orch, "-n", "1,2", "--", "--compute", "0.05", "--python", "0.5")
    assert (found["bound"], found["batch_is_for"], found["forecasts"]) == ("Python", "worker", [])
    assert [(size["workers"], round(size["examples"])) for size in found["sizes"]] == [(1, 16), (2, 32)]
    assert all(size["parts"]["Python"] >= 0.5 <= size["step"] for size in found["sizes"])
    assert all(size["parts"]["computing"] >= 0.05 for size in found["sizes"])
    assert [size["speed_up"] for size in found["sizes"]] == [1.0, None], "both workers share the cores of this machine"
    assert found["sizes"][1]["shares"].startswith("2 workers share the ")
    assert found["sizes"][1]["messages"] >= 1
    assert found["sizes"][1]["bytes"] >= 4096
    orch("report", "--home", ".orch/scale", "-o", "page.html", check=0)
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Why is it not faster?</h2>" in page
    assert "of a step is Python between the graphs" in page
    assert page.count('<div class="bar">') == 2


@pytest.mark.slow
def test_fit_goes_on_and_saves_nothing(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(FIT)
    found = measure(orch, "-n", "1,2", program="fit.py")
    assert found["batch_is_for"] == "all"
    assert [round(size["examples"]) for size in found["sizes"]] == [24, 24], "rows of the validation do not count"
    assert found["sizes"][1]["between"] > 0
    assert {path.name for path in tmp_path.iterdir()} <= {".orch", "fit.py", "exact"}
    assert [path for path in tmp_path.rglob("exact/**/*") if path.is_file()] == []
    assert (tmp_path / ".orch/scale/latest/attempt-1/worker-0/stdout.log").read_text().count("an epoch") > 2


@pytest.mark.slow
def test_fit_of_keras_2_is_measured_too(orch: Orch) -> None:
    found = measure(orch, "-n", "1,2", "--keras", "legacy", program=str(ROOT / "examples/keras_fit.py"))
    one, two = found["sizes"]
    assert (one["examples"], two["examples"]) == (pytest.approx(32, rel=0.1), pytest.approx(63, rel=0.1))
    assert two["messages"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "bound"),
    [
        ("--compute 0.05 --input 0.5", "input"),
        ("--compute 0.05 --slow 0.5", "waiting"),
        ("--compute 0.05 --turns 0.5", "waiting"),
        ("--compute 0.5", "computing"),
    ],
)
def test_the_bound_is_named(orch: Orch, words: str, bound: str) -> None:
    found = measure(orch, "-n", "2", "--", *words.split())
    assert found["bound"] == bound
    if bound == "waiting":
        assert found["sizes"][0]["slowest"] == ("worker-1" if "slow" in words else "")


@pytest.mark.slow
def test_the_other_way_to_divide_the_batch_is_tried_by_an_argument(orch: Orch) -> None:
    found = measure(orch, "-n", "1,2", "--batch-argument", "batch", "--", "--compute", "0.3", "--for-all")
    assert found["batch_is_for"] == "all"
    assert [(round(size["examples"]), size["batch"]) for size in found["other_batches"]] == [(32, 32)]


@pytest.mark.slow
def test_workers_that_train_apart_are_told(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART)
    error = orch("scale", "apart.py", "-n", "2", "--seconds", "3", check=2, env=ENV, timeout=300).err
    assert "the workers exchange nothing: each trains for itself. fix: build the model in the scope of" in error


@pytest.mark.slow
@pytest.mark.root
def test_an_exchange_over_slow_links_is_named_and_forecast(orch: Orch, bed: Bed) -> None:
    words = ("-n", "1,2,3", "-H", "hostA,hostB,hostC", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    with bed["hostA"].slow_link(20), bed["hostB"].slow_link(20), bed["hostC"].slow_link(20):
        found = measure(orch, *words, "--", "--compute", "0.1", "--kilobytes", "1000")
    assert found["bound"] == "exchange"
    two, three = found["sizes"][1:]
    assert two["bytes"] == pytest.approx(1_024_000, rel=0.01)
    assert two["speed_up"] < 1 < three["parts"]["exchange"] / two["parts"]["exchange"]
    assert [size["workers"] for size in found["forecasts"]] == [6, 12]
