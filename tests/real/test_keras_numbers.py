"""Uses of Keras 3's `fit` on two workers beside one process that a judge found to differ. The judge of `tests/judge` has most others."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.testing import cluster

DEADLINE_S = 600
"""It guards against a hang."""
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(2 * DEADLINE_S),
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_tensorflow"),
]


def train() -> dict[str, Any]:
    """In each task: the losses and weights of each use, and the batches that were asked for."""
    import os

    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
    rows = np.random.default_rng(1).random((52, 4)).astype("float32")
    labels = (rows.sum(axis=1) > 2).astype("float32")
    asked: list[int] = []

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            asked.append(int(index))
            some = slice(8 * index, 8 * index + 8)
            return rows[some], labels[some]

    class Endpoint(keras.layers.Layer):
        def call(self, logits: Any, labels: Any) -> Any:
            self.add_loss(keras.losses.BinaryCrossentropy(from_logits=True)(labels, logits))
            return logits

    class OwnSteps(keras.Model):
        def make_train_function(self, force: bool = False) -> None:
            def run(iterator):  # type: ignore[no-untyped-def]
                self.distribute_strategy.run(self.train_step, args=(next(iterator),))
                return {}

            self.train_function = tf.function(run)

    def fit(kind: str) -> Any:
        keras.utils.set_random_seed(1)
        with strategy.scope():
            inputs = keras.Input((4,))
            logits = keras.layers.Dense(1)(inputs)
            given: Any = keras.Input((1,))
            if kind == "endpoint":
                model: Any = keras.Model([inputs, given], Endpoint()(logits, given))
            else:
                model = (OwnSteps if kind == "own steps" else keras.Model)(inputs, logits)
            reduction = "none" if kind == "no reduction" else "sum_over_batch_size"
            loss = None if kind == "endpoint" else keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)
            model.compile(keras.optimizers.SGD(0.05), loss)
        whole: dict[str, Any] = {"x": rows[:48], "y": labels[:48, None], "batch_size": 8, "shuffle": False}
        if kind == "workers":
            whole = {"x": Batches(workers=2, max_queue_size=2), "shuffle": False}
        elif kind == "endpoint":
            whole |= {"x": [whole["x"], whole.pop("y")]}
        history = model.fit(**whole, epochs=2, verbose=0).history
        return [*history.get("loss", []), *np.concatenate([each.ravel() for each in model.get_weights()]).tolist()]

    found = {kind: fit(kind) for kind in ("workers", "endpoint", "no reduction", "own steps")}
    return {**found, "asked": sorted(asked)}


def test_uses_that_a_judge_found_to_differ_have_the_numbers_of_one_process() -> None:
    with cluster(workers=1, strategy="none", timeout=DEADLINE_S) as c:
        expected = c.run(train)["worker-0"]
    with cluster(workers=2, timeout=DEADLINE_S) as c:
        first, second = c.run(train).values()
        said = c.logs("worker-0")
    assert first == second
    assert first.keys() == expected.keys()
    for kind, numbers in expected.items():
        assert first[kind] == pytest.approx(numbers, rel=2e-4, abs=2e-5), kind
    assert "orch: add_loss" not in said
    assert said.count("orch: make_train_function") == 1
