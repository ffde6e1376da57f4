"""Keras 3 with workers that have small, empty or no parts of a batch: each case of `keras_parts.py` beside the same in one process."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import cluster

DEADLINE_S = 900

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(2 * DEADLINE_S),
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_tensorflow"),
]

EARLY = (
    "workers_whose_data_ends_early",
    "whole_batches_of_workers_whose_data_ends_early",
    "batches_with_fewer_rows_than_workers",
    "a_step_in_which_no_worker_has_a_row",
)
ENDLESS = ("data_without_an_end",)
STATE = ("state_of_own_layers", "stops_of_one_worker")
EVALUATED = (
    "logs_of_an_own_test_step",
    "means_that_an_own_test_step_shows",
    "metrics_that_an_own_test_step_shows_by_other_names",
    "metrics_with_a_number_of_the_program",
    "losses_of_outputs_with_an_own_train_step",
)
OWN = (
    "metrics_of_the_program",
    "losses_that_a_step_shows",
    "losses_that_a_step_combines",
    "numbers_for_each_output",
    "moments_that_replicas_share_in_an_own_step",
    "parts_of_one_shuffle",
    *EVALUATED,
    "losses_that_a_loss_combines",
    "losses_of_the_program",
    "losses_of_one_number_with_weights",
    "rows_that_a_layer_checks",
    "single_rows_eagerly",
    "masks_of_different_length",
    "a_schedule_with_a_condition",
    "a_step_that_takes_all_of_the_data_for_x",
)
OF_TWO = ("logs_of_an_own_step", "a_stop_by_a_function_elsewhere")
Cases = dict[str, dict[str, Any]]


def run_cases(names: Iterable[str]) -> Cases:
    from tests.programs import keras_parts

    return keras_parts.run(names)


def flat(value: Any) -> list[float]:
    return [number for each in value for number in flat(each)] if isinstance(value, list) else [value]


def messages_of_a_step() -> dict[str, int]:
    from tests.programs import keras_parts

    return keras_parts.messages_of_a_step()


def calls_of_a_step() -> float:
    from tests.programs import keras_parts

    return keras_parts.calls_of_a_step()


def messages_of_evaluations() -> list[tuple[int, int]]:
    """In a task."""
    from tests.programs import keras_parts

    return keras_parts.messages_of_evaluations()


def check(names: Iterable[str], alone: Cases, together: dict[str, Cases]) -> None:
    """The workers are equal, and no number is NaN or differs from the one of one process."""
    first, *others = together.values()
    for name in names:
        assert [other[name] for other in others] == [first[name]] * len(others), f"{name}: the workers differ"
        assert first[name].keys() == alone[name].keys()
        for key, value in first[name].items():
            assert all(math.isfinite(number) for number in flat(value)), f"{name}: {key}: {value}"
            assert flat(value) == pytest.approx(flat(alone[name][key]), rel=1e-3, abs=1e-4), f"{name}: {key}"


@pytest.mark.parametrize(
    ("workers", "names"),
    [
        pytest.param(2, (*EARLY, *ENDLESS, *STATE, *OWN[:4]), marks=pytest.mark.core),
        (2, (*OWN[4:], *OF_TWO, "stops_of_one_worker")),
        (3, (*EARLY, *ENDLESS, "metrics_of_the_program", *EVALUATED, "stops_of_one_worker")),
    ],
)
def test_workers_with_uneven_parts_give_what_one_process_gives(workers: int, names: tuple[str, ...]) -> None:
    env = {"PARTS": str(workers)}
    with cluster(workers=1, strategy="none", env=env, timeout=DEADLINE_S) as c:
        alone = c.run(run_cases, names)["worker-0"]
    with cluster(workers=workers, env=env, timeout=DEADLINE_S) as c:
        check(names, alone, c.run(run_cases, names))
        assert f"worker-{workers - 1} has set stop_training, and other workers have not: all workers stop after step 3 of this epoch" in (
            c.logs(f"worker-{workers - 1}")
        )
        # The sums of the gradients, and the logs. The numbers of rows are told only where they may differ: 16 rows have no three parts.
        found, *others = c.run(messages_of_a_step).values()
        assert others == [found] * len(others)
        assert found == {"whole": 2 if workers == 2 else 3, "mapped": 3, "smaller": 3}
        # One for the data, then one for batches that are taken together: for 1, 1, 4, 16 and 18; for 32 and 8. One is for the logs.
        assert all(calls < 300 for calls in c.run(calls_of_a_step).values())  # an order of magnitude: a whole step makes 2,500
        assert list(c.run(messages_of_evaluations).values()) == [[(6, 1), (3, 0)]] * workers


def save_in_turn(directory: str, order: list[str], ending: str) -> dict[str, float]:
    from tests.programs import keras_parts

    return keras_parts.save_in_turn(directory, order, ending)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def test_the_file_of_the_chief_stays_whichever_worker_is_last(tmp_path: Path) -> None:
    """Also while another process holds the directory, as the controller of a run holds the run directory."""
    chief, other = "worker-0", "worker-1"
    with cluster(workers=2, timeout=DEADLINE_S) as c, held(tmp_path):
        for order, ending, owner in (
            ([chief, other], "keras", chief),
            ([other, chief], "weights.h5", chief),
            ([chief, other], "weights.h5", chief),
            ([other], "keras", other),
        ):
            found = c.run(save_in_turn, str(tmp_path), order, ending)
            assert found[chief]["own"] != found[other]["own"]
            assert {each["saved"] for each in found.values()} == {found[owner]["own"]}, (order, ending)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "worker-0-worker-1.keras",
        "worker-0-worker-1.weights.h5",
        "worker-1-worker-0.weights.h5",
        "worker-1.keras",
    ]


def begun_with_a_backup_of_the_chief(directory: str) -> str:
    """In a task: the error of a `fit` that goes on from a backup which only one worker sees."""
    import keras
    import numpy as np

    import worker

    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyError(epoch)

    with worker.strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x: Any = np.ones((8, 3), "float32")
    backup = keras.callbacks.BackupAndRestore(f"{directory}/{os.environ['ORCH_TASK']}")
    for more in ([Interrupts()], []):
        try:
            model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[backup, *more])
        except (KeyError, RuntimeError) as error:
            found = str(error)
    return found


def saved_in_the_scope(directory: str) -> list[float]:
    """In a task: the losses of a `fit` in the scope whose backup the chief alone writes, and a file that the chief alone saves there."""
    import keras
    import numpy as np

    import worker

    x: Any = np.ones((8, 3), "float32")
    with worker.strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        found = model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(f"{directory}/backup")]).history[
            "loss"
        ]
        if os.environ["ORCH_IS_CHIEF"] == "1":
            model.save(f"{directory}/of_the_chief.keras")
        return [*found, model.evaluate(x, x[:, :1], verbose=0)]


def test_the_chief_alone_may_save_inside_of_the_scope(tmp_path: Path) -> None:
    with cluster(workers=2, timeout=DEADLINE_S) as c:
        first, second = c.run(saved_in_the_scope, str(tmp_path)).values()
    assert first == second
    assert first == sorted(first, reverse=True)
    assert (tmp_path / "of_the_chief.keras").exists()


def test_a_backup_that_one_worker_alone_sees_ends_all_workers_with_the_remedy(tmp_path: Path) -> None:
    with cluster(workers=2, timeout=DEADLINE_S) as c:
        found = c.run(begun_with_a_backup_of_the_chief, str(tmp_path))
    remedy = "give BackupAndRestore to all workers, with a directory that all of them see"
    assert found == {
        "worker-0": f"worker-0 finds a backup, and other workers do not: {remedy}",
        "worker-1": f"worker-1 finds no backup, and other workers do: {remedy}",
    }


def logs_of_steps(strategy: Any) -> list[dict[str, float]]:
    """In a task: the logs of each step of a `train_step` that returns its own loss by the name of Keras's metric, and metrics."""
    import keras
    import numpy as np
    import tensorflow as tf

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.auc = keras.layers.Dense(1), keras.metrics.AUC(name="auc")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                found = self(x, training=True)
                loss = tf.reduce_mean((found - y) ** 2)
                part = loss / tf.distribute.get_strategy().num_replicas_in_sync
            gradients = tape.gradient(part, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.auc.update_state(tf.cast(y > 1, tf.float32), tf.sigmoid(found))
            return {"loss": loss, "auc": self.auc.result(), "twice": 2 * loss}

    found: list[dict[str, float]] = []
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Own()
        model.compile(keras.optimizers.SGD(0.1))
    x = np.arange(64, dtype="float32").reshape(32, 2) / 64
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: found.append({k: float(v) for k, v in logs.items()}))
    model.fit(x, x[:, :1] * 2, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[keep])
    return found


def test_a_loss_of_the_program_is_not_taken_for_the_metric_of_its_name() -> None:
    with cluster(workers=1, strategy="none") as c:
        (alone,) = c.run(logs_of_steps).values()
    with cluster(workers=2) as c:
        for found in c.run(logs_of_steps).values():
            assert len(found) == len(alone) == 8
            for step, wanted in zip(found, alone, strict=True):
                assert step == pytest.approx(wanted, rel=1e-4)
    assert all(step["loss"] > 0 for step in alone)


def look_at_losses() -> dict[str, Any]:
    """What is found of losses, how often each function was called, and what its state is afterwards."""
    import keras
    import tensorflow as tf
    from keras.src.losses.losses import LossFunctionWrapper

    from worker.task.keras import loss_functions

    state, draws, calls = tf.Variable(0.0), keras.random.SeedGenerator(1), [0]

    def in_batch(y: Any, logits: Any) -> Any:
        calls[0] += 1
        return -tf.linalg.diag_part(tf.nn.log_softmax(tf.matmul(logits, logits, transpose_b=True)))

    def keeps_state(y: Any, z: Any) -> Any:
        state.assign_add(1.0)
        return tf.reduce_mean(tf.square(y - z), -1)

    def draws_numbers(y: Any, z: Any) -> Any:
        return tf.reduce_mean(tf.square(y - z + keras.random.normal(tf.shape(z), seed=draws)), -1)

    def calls_python(y: Any, z: Any) -> Any:
        return tf.py_function(lambda a, b: tf.reduce_mean(tf.square(a - b), -1), [y, z], tf.float32)

    rows = tf.zeros([8, 3]), tf.zeros([8, 3])
    functions = {each.__name__: each for each in (in_batch, keeps_state, draws_numbers, calls_python, keras.losses.mean_squared_error)}
    found = {name: loss_functions.is_of_rows(LossFunctionWrapper(each), *rows) for name, each in functions.items()}
    return {**found, "calls": calls[0], "state": float(state), "draws": draws.state.numpy().tolist()}


def test_a_loss_function_is_looked_at_without_a_change_of_its_state() -> None:
    with cluster(workers=1, strategy="none") as c:
        found = c.run(look_at_losses)["worker-0"]
    assert found.pop("draws") == [1, 0]
    unknown = dict.fromkeys(("keeps_state", "draws_numbers", "calls_python"))
    assert found == {**unknown, "in_batch": False, "mean_squared_error": True, "calls": 1, "state": 0.0}
