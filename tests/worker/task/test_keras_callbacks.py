"""The paths of callbacks in workers that are not the chief (worker/task/keras/callbacks.py), and calls of `fit` that orch leaves alone;
tests/real/ trains with both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, run_plainly
from worker.task.keras import callbacks
from worker.task.patches import import_hooks


def test_a_replaced_path_is_told_once_however_many_fits_there_are(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_LOG_DIR", "/run/worker-1")
    monkeypatch.setenv("ORCH_TASK", "worker-1")
    monkeypatch.setattr(import_hooks, "_printed", set())
    for _ in range(2):
        assert callbacks._own("log.csv", "log.csv") == "/run/worker-1/log.csv"
    assert capfd.readouterr().err == "orch: note: log.csv is the chief's; this worker's is /run/worker-1/log.csv\n"


PLAIN = """
import numpy as np, tensorflow as tf
import worker
from worker.task.keras import feed
made, make = [], feed.make
feed.make = lambda *args, **kwargs: made.append(1) or make(*args, **kwargs)

def train(strategy):
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    made.clear()
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.evaluate(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.predict(np.ones((4, 2)), verbose=0)
    return len(made), model

several, _ = train(tf.distribute.MirroredStrategy(["CPU:0"]))
none, model = train(tf.distribute.get_strategy())
print(several, none)
try:
    model.fit(np.ones((4, 2)), np.ones((4, 1)), workers=2)
except TypeError as error:
    print(error)
"""


@pytest.mark.tensorflow
def test_without_a_strategy_keras_keeps_its_data_and_its_errors(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    done = run_plainly([str(tmp_path / "plain.py")], tmp_path, env={"PYTHONPATH": str(ROOT)}).check()
    counts, error = done.out.splitlines()
    assert counts == "3 0"
    assert "Trainer.fit() got an unexpected keyword argument 'workers'" in error
