"""What a task says about releases of Keras that are wrong on several replicas, with doubles of Keras's classes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from worker.task import import_hooks
from worker.task.keras import old_releases

OPTIMIZER = "keras.src.backend.tensorflow.optimizer"
WRONG_LOOP, WRONG_FIT = "TRAINS WRONGLY on several workers or replicas", "losses and metrics are those of only some replicas"


class Optimizer:
    def _distributed_tf_update_step(self, distribution: Any, grads_and_vars: Any, learning_rate: Any) -> str:
        return "updated"


class Trainer:
    def __init__(self, replicas: int) -> None:
        self.distribute_strategy = SimpleNamespace(num_replicas_in_sync=replicas)

    def fit(self, x: Any = None) -> str:
        return "trained"


@pytest.mark.parametrize(
    ("version", "has_workers", "replicas", "said"),
    [
        ("3.3.3", True, 0, WRONG_LOOP),  # at once
        ("3.4.1", False, 2, WRONG_LOOP),
        ("3.4.1", False, 1, ""),
        ("3.7.0", False, 2, f"adds the gradients of the replicas and does not take their mean: {WRONG_FIT}"),
        ("3.9.2", False, 2, f"counts wrongly: {WRONG_FIT}"),
        ("3.9.2", False, 1, ""),
        ("3.9.2", True, 2, ""),  # fit.py has a line
        ("3.10.0", False, 2, ""),
        ("3.15.1", True, 2, ""),
        ("4.0.0", False, 2, ""),
        ("unknown", True, 2, ""),
    ],
)
def test_a_line_says_what_a_release_does_wrongly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, has_workers: bool, replicas: int, said: str
) -> None:
    optimizers: Any = ModuleType(OPTIMIZER)
    optimizers.TFOptimizer = type("TFOptimizer", (Optimizer,), {})
    monkeypatch.setitem(sys.modules, OPTIMIZER, optimizers)
    monkeypatch.setattr(import_hooks, "_printed", set())
    trainer: Any = SimpleNamespace(TensorFlowTrainer=type("TensorFlowTrainer", (Trainer,), {}))
    old_releases.warn(version, trainer, has_workers=has_workers)
    if replicas:
        model = trainer.TensorFlowTrainer(replicas)
        assert model.fit(x=[1]) == "trained"
        assert optimizers.TFOptimizer()._distributed_tf_update_step(model.distribute_strategy, [], 0.1) == "updated"
    lines = capsys.readouterr().err.splitlines()
    assert [said in line and "pip install 'keras>=3.10,<3.17'" in line for line in lines] == [True] * bool(said)
