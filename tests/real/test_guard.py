"""Errors of orch's own code at each place where a program runs it: what measures is off, and what changes ends all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.conftest import Orch
from worker.task.patches import features
from worker.task.patches.table import FEATURES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900), pytest.mark.usefixtures("warm_tensorflow")]

INNER = {
    "keras.state.share": features.FIT,
    "keras.parts.share_of": features.FIT,
    "keras.optimizer._added": features.STEP,
    "keras.data.steps_of_epoch": features.LOOPS,
    "keras.state.is_normalized_by_parts": features.WARNINGS,
    "input.input_counter._measure": features.COUNTS,
    "observe.meetings._come": features.MEETINGS,
    "observe.meetings._leave": features.MEETINGS,
    "observe.step_times._input": "",
    "observe.reports.report": features.REPORTS,
}
"""Functions that callbacks, threads and replaced functions call, by module, with the feature of the place; empty: the caller knows what
to do without an answer, and nothing is off."""


IN_SAVES = dict.fromkeys(
    (*(f"checkpoints.fit_session.FitSession.{name}" for name in ("begin", "_document", "end")), "checkpoints.save_orders.is_due"),
    features.SAVES,
)
IN_VERIFY = dict.fromkeys(
    (*(f"observe.recorder.Recorder.{name}" for name in ("known", "apply")), "observe.fingerprints.of_rows"), features.VERIFY
)
KINDS: dict[str, tuple[dict[str, Any], dict[str, str], int, int]] = {
    "as it is": ({}, INNER, 20, 6),
    "with saves and input": ({"checkpoints": {"fit": True, "every": 1}, "input": {"shuffle_seed": 1}}, IN_SAVES, 24, 7),
    "with verify": ({}, IN_VERIFY, 26, 9),
    "Keras 2": ({"keras": "legacy", "checkpoints": {"fit": True, "every": 1}}, {}, 10, 6),
}
"""The settings, the functions besides the rows of the table, and how many places a `fit` and a loop come to at least."""


def begin_to_verify() -> None:
    """Have this task write down what it trains, as a task of `orch verify` does from its start on."""
    import os
    from importlib import import_module

    recorder, record_hooks = (import_module(f"_orch_worker.task.observe.{name}") for name in ("recorder", "record_hooks"))
    recorder._settings.update(word="verify", steps=1 << 30)
    setattr(record_hooks, "end_at_fault", lambda features: None)  # noqa: B010 - otherwise the first place that is broken ends the task
    record_hooks.watch(os.environ["ORCH_LOG_DIR"])


def break_each_place(inner: dict[str, str], verifies: bool = False) -> dict[str, dict[str, tuple[str, str]]]:
    """For a `fit` and for a loop, by place: its feature, and what became of an error there."""
    import sys
    from importlib import import_module

    import numpy as np
    import tensorflow as tf

    patches, guard, table = (import_module(f"_orch_worker.task.patches{name}") for name in ("", ".guard", ".table"))
    given = import_module("_orch_worker.task.input.given")
    if verifies:
        begin_to_verify()
    keras = tf.keras  # of the release that the task has
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x: Any = np.arange(16, dtype=np.float32).reshape(8, 2)

    def fit() -> None:
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.BatchNormalization()])
            model.compile("sgd", "mse")
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
        assert model.predict(tf.data.Dataset.from_tensor_slices(x).batch(4), verbose=0).shape == (8, 1)

    def loop() -> None:
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).shuffle(8).batch(4))

        @tf.function
        def step(iterator):  # type: ignore[no-untyped-def]  # AutoGraph evaluates annotations
            return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)

        iterator = iter(data)
        assert sum(float(step(iterator)) for _ in range(2)) == x.sum()

    def run(program: Any) -> str:
        guard.off.clear()
        given._exchanges.clear()  # so that the functions by which the workers exchange numbers are traced again
        try:
            program()
        except Exception as error:
            # A task would have ended. Here TensorFlow's C++, through which some functions are called, may make another exception of it.
            return "Fault" if "orch's own code has failed" in str(error) else f"{type(error).__name__}: {error}"
        return f"off: {', '.join(sorted(guard.off))}"

    hits: set[str] = set()
    places: dict[str, tuple[str, Any, Any]] = {}
    """By place: its feature, a function that puts another one there, and the one that is there."""
    for feature, row in table.FEATURES.items():
        for name in row.names:
            owner, attribute = patches._find(feature, name) if not table.NAMES[name].is_read else (None, "")
            made: Any = getattr(owner, attribute, None)
            while hasattr(made, "_orch_feature") and made._orch_feature != feature:
                made = made.__wrapped__
            if hasattr(made, "_orch_feature"):
                cell = made.__closure__[made.__code__.co_freevars.index("ours")]
                places[f"{name} ({feature})"] = (feature, lambda ours, cell=cell: setattr(cell, "cell_contents", ours), cell.cell_contents)
    for place, feature in inner.items():
        *parts, name = place.split(".")
        owner = import_module(f"_orch_worker.task.{'.'.join(parts[:2])}")
        for part in parts[2:]:
            owner = getattr(owner, part)
        places[place] = (feature, lambda ours, owner=owner, name=name: setattr(owner, name, ours), getattr(owner, name))

    def broken(place: str, ours: Any, *, is_before: bool) -> Any:
        def fail(*args: Any, **kwargs: Any) -> None:
            hits.add(place)
            if not is_before:
                ours(*args, **kwargs)
            raise KeyError("orch's own")

        return fail

    def counted(place: str, ours: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            hits.add(place)
            return ours(*args, **kwargs)

        return count

    found: dict[str, dict[str, tuple[str, str]]] = {}
    for program in (fit, loop):
        found[program.__name__] = {}
        for place, (_, put, ours) in places.items():
            put(counted(place, ours))
        hits.clear()
        assert run(program) == "off: "
        for _, put, ours in places.values():
            put(ours)
        for place in sorted(hits):
            feature, put, ours = places[place]
            put(broken(place, ours, is_before=program is fit))
            found[program.__name__][place] = (feature, run(program))
            put(ours)
        assert run(program) == "off: "
    sys.stdout.flush()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_at_each_place_turns_off_what_measures_and_ends_what_changes(kind: str) -> None:
    settings, inner, in_fit, in_loop = KINDS[kind]
    with cluster(workers=2, timeout=800, **settings) as c:
        told = c.run(break_each_place, inner, kind == "with verify")
        logs = c.logs("worker-0")
    expected = {"measures": "off: {}", "changes": "Fault"}
    wrong = {
        (task, program, place): became
        for task, found in told.items()
        for program, places in found.items()
        for place, (feature, became) in places.items()
        if became != (expected[FEATURES[feature].sort].format(feature) if feature else "off: ")
    }
    assert not wrong, "\n".join(f"{key}: {became[-300:]}" for key, became in wrong.items())
    found = told["worker-0"]
    assert inner.keys() <= found["fit"].keys()
    assert (len(found["fit"]) >= in_fit, len(found["loop"]) >= in_loop) == (True, True), {name: [*places] for name, places in found.items()}
    assert kind != "as it is" or logs.count(f"{features.MEETINGS}: off from here on, because orch's own code has failed (KeyError: ") >= 1


CAUGHT = """
import os, sys
import numpy as np
import tensorflow as tf
import keras

def broken(*_):
    return {}["orch's own"]

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.ones((8, 2), np.float32)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
if os.environ["ORCH_TASK"] == "worker-1":
    sys.modules["_orch_worker.task.keras.optimizer"]._added = broken
while True:
    try:
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
    except Exception as error:
        print("caught", error)
"""


def test_a_program_that_catches_all_errors_does_not_go_on_after_one_of_orch(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CAUGHT)
    done = orch("up", "train.py", "-n", "2", "--timeout", "200", check=1)
    assert "first failure: worker-1 on local" in done.err
    assert f"orch.Fault: {features.STEP}: orch's own code has failed: KeyError: \"orch's own\" (optimizer.py:" in done.err
    assert "fix: report this fault of orch" in done.err
    assert "worker-1 | caught" not in done.out


NOT_EAGER = """
import keras
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
x = np.ones((8, 2), np.float32)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], verbose=0)
"""


def test_a_program_that_turns_eager_execution_off_is_told_what_fails(orch: Orch, tmp_path: Path) -> None:
    """By hand it is an error of TensorFlow's; it was taken for a fault of orch, whose code takes numbers from tensors."""
    (tmp_path / "train.py").write_text(NOT_EAGER)
    done = orch("up", "train.py", "-n", "2", "--timeout", "200", check=1)
    assert "RuntimeError: Keras 3 trains only with eager execution, which the program has turned off. fix: leave out" in done.err
    assert "fault of orch" not in done.err


# --- programs that begin again --------------------------------------------------------------------


def sweep_in_one_process() -> dict[str, Any]:
    """A sweep with one strategy, a function that is traced again, two trainings in threads, and then another context of TensorFlow."""
    import threading
    import time

    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context

    x: Any = np.arange(16, dtype=np.float32).reshape(8, 2) / 16

    def train(strategy: Any, units: int) -> float:
        with strategy.scope():
            layers = [keras.Input((2,)), keras.layers.Dense(units, kernel_initializer="ones"), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile("sgd", "mse")
        return float(model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"][-1])

    strategy, found = tf.distribute.MultiWorkerMirroredStrategy(), dict[str, Any]()
    found["sweep"] = []
    for units in (1, 2, 3):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        found["sweep"].append(train(strategy, units))

    @tf.function
    def count(value):  # type: ignore[no-untyped-def]  # AutoGraph evaluates annotations
        return strategy.reduce("SUM", strategy.run(lambda: tf.cast(tf.size(value), tf.float32)), axis=None)

    found["traced"] = [float(count(tf.zeros([size]))) for size in range(1, 4)]

    def alone(units: int) -> None:
        found[f"thread {units}"] = train(tf.distribute.get_strategy(), units) < 10

    threads = [threading.Thread(target=alone, args=(units,)) for units in (4, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    context._reset_context()
    time.sleep(2.5)  # the threads of orch look once a second, and must not start the runtime, whose devices could not be set any more
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.backend.clear_session()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found["mirrored"] = (mirrored.num_replicas_in_sync, train(mirrored, 2) < 10)
    data = mirrored.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(4))
    step = tf.function(lambda batch: mirrored.reduce("SUM", mirrored.run(tf.reduce_sum, args=(batch,)), axis=None))
    found["sum"] = sum(float(step(batch)) for batch in data)
    return found


@pytest.mark.slow
def test_a_process_may_begin_again_in_every_way() -> None:
    with cluster(workers=2, timeout=400) as c:
        told = c.run(sweep_in_one_process)
        logs = c.logs("worker-0") + c.logs("worker-1")
    found = told["worker-0"]
    assert found == told["worker-1"]
    assert len(set(found["sweep"])) == 3
    assert found["traced"] == [2.0, 4.0, 6.0]
    assert (found["thread 4"], found["thread 5"]) == (True, True)
    assert (found["mirrored"], found["sum"]) == ((2, True), 7.5)
    assert "off from here on" not in logs
