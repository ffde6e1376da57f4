"""Uses of Keras 3's `fit` on two workers beside one process that a judge found to differ. The judge of `tests/judge` has most others."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.testing import cluster

DEADLINE_S = 600
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2 * DEADLINE_S), pytest.mark.slow, pytest.mark.usefixtures("warm_tensorflow")]


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
        elif kind == "choice":  # TensorFlow takes it for endless
            parts = (tf.data.Dataset.from_tensor_slices((rows[at : at + 24], labels[at : at + 24, None])) for at in (0, 24))
            endless = [part.shuffle(24, seed=1).repeat() for part in parts]
            whole = {"x": tf.data.Dataset.choose_from_datasets(endless, tf.data.Dataset.range(2).repeat(19)).batch(8)}
        history = model.fit(**whole, epochs=2, verbose=0).history
        evaluated = [model.evaluate(whole["x"], verbose=0)] if kind == "choice" else []
        return [*history.get("loss", []), *evaluated, *np.concatenate([each.ravel() for each in model.get_weights()]).tolist()]

    found = {kind: fit(kind) for kind in ("workers", "endpoint", "no reduction", "own steps", "choice")}
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
    assert "warning: add_loss" not in said
    assert "without an end" not in said
    assert "without end" not in said
    assert said.count("orch: warning: the program's make_train_function") == 1


def lose_nothing(strategy: Any, reduction: str) -> float:
    """In each task: the sum of a loss in a loop of its own whose last batch has one row, so that one worker has none."""
    import keras
    import tensorflow as tf

    loss = keras.losses.MeanSquaredError(reduction=reduction)
    dataset = tf.data.Dataset.from_tensor_slices(tf.ones([9, 1])).batch(8)
    total = 0.0
    for rows in strategy.experimental_distribute_dataset(dataset):
        found = strategy.run(lambda rows: tf.reduce_sum(loss(rows, 3 * rows)), args=(rows,))
        total += float(strategy.reduce("SUM", found, axis=None))
    return total


def test_a_loss_of_an_empty_part_is_said_only_where_keras_leaves_it_without_a_number() -> None:
    line = "a loss of Keras for a part without rows is an empty tensor"
    for reduction, is_said in (("none", False), ("sum_over_batch_size", True)):
        with cluster(workers=2, timeout=DEADLINE_S) as c:
            assert len(set(c.run(lose_nothing, reduction=reduction).values())) == 1
            assert [line in c.logs(f"worker-{index}") for index in (0, 1)] == [False, is_said], reduction


def gather(replicas: int) -> list[float]:
    """In each task: what a program gathers after a `fit`, in which orch gathers as well."""
    import sys

    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.distribute import collective_all_reduce_strategy

    extended: Any = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = lambda self, resolver, worker: (
        tuple(f"{worker}/device:CPU:{index}" for index in range(replicas)),
        "CPU",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[keras.metrics.AUC()])
    x = np.linspace(0, 1, 16, dtype="float32")[:, None]
    model.fit(x, x > 0.5, batch_size=8, verbose=0)
    model.predict(x, batch_size=8, verbose=0)
    print("the program gathers", file=sys.stderr)
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x[:8]).batch(8))
    return [float(number) for number in np.ravel(strategy.gather(batch, axis=0))]


@pytest.mark.parametrize("replicas", [1, 2])
def test_only_a_gather_of_the_program_itself_is_said_to_have_another_order(replicas: int) -> None:
    with cluster(workers=2, cpus=2, timeout=DEADLINE_S) as c:
        found = c.run(gather, replicas=replicas)["worker-0"]
        of_orch, of_program = c.logs("worker-0").split("the program gathers")
    assert len(found) == 8
    assert "several replicas in each worker" not in of_orch
    assert ("the rows of a batch come worker by worker" in of_program) == (replicas > 1)
    assert (found == sorted(found)) == (replicas == 1)
