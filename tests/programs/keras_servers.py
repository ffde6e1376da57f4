"""Keras 2's `fit` with parameter servers, case by case, in the chief of a cluster: `run` gives what each case gave.

The workers do not wait for each other, so that no two runs give the same weights: a case says how many steps were taken, and whether the
model has learnt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import worker

keras: Any = tf.keras
strategy = worker.strategy()

BATCH, STEPS = 16, 20
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
DIRECTORY = Path()

draws = np.random.default_rng(0)
FEATURES = draws.normal(size=(64, 8)).astype("float32")
LABELS = (FEATURES.sum(axis=1) > 0).astype("int64")


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def compiled(optimizer: Any = None, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.5), loss=loss, metrics=["accuracy"], **options)
    return model


def shuffled(context: Any = None) -> Any:
    """The data of a worker: each has all of it, in an order of its own."""
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).shuffle(64).repeat().batch(BATCH)


def creator() -> Any:
    return keras.utils.experimental.DatasetCreator(shuffled)


def trained(model: Any, x: Any = None, epochs: int = 2, **options: Any) -> dict[str, Any]:
    history = model.fit(creator() if x is None else x, epochs=epochs, steps_per_epoch=STEPS, verbose=0, **options)
    return {"steps": int(model.optimizer.iterations.numpy()), "epochs": len(history.epoch), "accuracy": accuracy_of(model)}


def accuracy_of(model: Any) -> float:
    return float(np.mean(np.argmax(model(FEATURES), axis=1) == LABELS))


@case
def dataset_creator() -> dict[str, Any]:
    return trained(compiled())


@case
def datasets_and_validation() -> dict[str, Any]:
    return trained(compiled(), shuffled(), validation_data=creator(), validation_steps=4)


@case
def numpy_arrays() -> dict[str, Any]:
    return trained(compiled(), np.tile(FEATURES, (5, 1)), y=np.tile(LABELS, 5), batch_size=BATCH)


@case
def steps_per_execution() -> dict[str, Any]:
    decay = keras.optimizers.schedules.ExponentialDecay(0.5, 20, 0.5)
    return trained(compiled(lambda: keras.optimizers.SGD(decay), steps_per_execution=5), class_weight={0: 1.0, 1: 2.0})


@case
def early_stopping_and_plateaus() -> dict[str, Any]:
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10)
    return trained(compiled(), epochs=5, callbacks=[stop, keras.callbacks.ReduceLROnPlateau("loss", patience=0)])


@case
def evaluate() -> dict[str, Any]:
    model = compiled(pss_evaluation_shards=2)
    trained(model, epochs=1)
    data = tf.data.Dataset.from_tensor_slices((FEATURES[:50], LABELS[:50])).batch(BATCH)
    found = model.evaluate(data, verbose=0, return_dict=True)
    alone = np.mean(np.argmax(model(FEATURES[:50]), axis=1) == LABELS[:50])
    some = compiled().evaluate(creator(), steps=4, verbose=0)
    return {"is_exact": bool(np.isclose(float(found["accuracy"]), alone)), "values": len(some)}


@case
def predict() -> dict[str, Any]:
    model = compiled()
    found = model.predict(FEATURES, batch_size=BATCH, verbose=0)
    return {"shape": list(found.shape), "in_order": bool(np.allclose(found, model(FEATURES), atol=1e-4))}


@case
def files() -> dict[str, Any]:
    each = keras.callbacks.ModelCheckpoint(str(DIRECTORY / "{epoch}.keras"))
    logs = [keras.callbacks.TensorBoard(str(DIRECTORY / "board")), keras.callbacks.CSVLogger(str(DIRECTORY / "log.csv"))]
    model = compiled()
    found = trained(model, callbacks=[each, *logs])
    model.save(DIRECTORY / "model.keras")
    again = accuracy_of(keras.models.load_model(DIRECTORY / "model.keras"))
    return {**found, "is_the_same": again == found["accuracy"], "checkpoints": sorted(path.name for path in DIRECTORY.glob("[12].keras"))}


def backup_and_restore(directory: str, dies: bool) -> dict[str, Any]:
    """It goes on with the second epoch in the process that comes after one which has died in there."""

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and dies:
                os.kill(os.getpid(), signal.SIGKILL)

    return trained(compiled(), epochs=3, callbacks=[keras.callbacks.BackupAndRestore(f"{directory}/backup"), Dies()])


def run(directory: str) -> dict[str, dict[str, Any]]:
    global DIRECTORY
    DIRECTORY = Path(directory)
    return {name: function() for name, function in CASES.items()}
