"""Keras's API, case by case: ``python keras_api.py RESULTS [CASE...]`` writes what each case gave to RESULTS, one JSON object.

With ``TF_USE_LEGACY_KERAS=1`` it is Keras 2's.

The same program runs alone and as a task of a cluster. A case trains a small model on the same global batches from the same first weights,
so that its losses, metrics and weights are to be equal, wherever it runs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()

is_keras_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
keras: Any = importlib.import_module("tf_keras" if is_keras_2 else "keras")  # a strategy is made before anything else

BATCH = 16
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
RESULTS = Path(sys.argv[1])
SHARED = RESULTS.parent / "shared"

draws = np.random.default_rng(0)
FEATURES = draws.normal(size=(64, 8)).astype("float32")
LABELS = (FEATURES.sum(axis=1) > 0).astype("int64")


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(*layers: Any, optimizer: Any = "sgd", **options: Any) -> Any:
    """A model of these layers before the last one, with the same first weights each time."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), *layers, keras.layers.Dense(2)])
        made = optimizer() if callable(optimizer) else optimizer
        model.compile(made, loss=entropy(), metrics=["accuracy"], **options)
    return model


def batches(count: int = 64) -> Any:
    return tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count])).batch(BATCH)


def told(model: Any, history: Any = None, **more: Any) -> dict[str, Any]:
    """The losses and metrics of each epoch, and what there is of the weights."""
    logs = {name: [float(value) for value in values] for name, values in history.history.items()} if history is not None else {}
    return {**logs, "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()], **more}


def trained(model: Any, epochs: int = 2, **options: Any) -> dict[str, Any]:
    return told(model, model.fit(options.pop("x", batches()), epochs=epochs, verbose=0, **options))


# --- data ----------------------------------------------------------------------------------------


@case
def datasets() -> dict[str, Any]:
    return trained(compiled(), validation_data=batches(32))


@case
def a_last_batch_that_is_smaller() -> dict[str, Any]:
    return trained(compiled(), x=batches(60))


@case
def numpy_arrays() -> dict[str, Any]:
    return trained(compiled(), x=FEATURES, y=LABELS, batch_size=BATCH, shuffle=False, validation_split=0.25)


@case
def generators() -> dict[str, Any]:
    def forever() -> Iterator[Any]:
        while True:
            for first in range(0, 64, BATCH):
                yield FEATURES[first : first + BATCH], LABELS[first : first + BATCH]

    return trained(compiled(), x=forever(), steps_per_epoch=4)


@case
def sample_weights() -> dict[str, Any]:
    weights = np.linspace(0, 1, 64).astype("float32")
    return trained(compiled(), x=FEATURES, y=LABELS, sample_weight=weights, batch_size=BATCH, shuffle=False)


@case
def class_weights() -> dict[str, Any]:
    return trained(compiled(), class_weight={0: 1.0, 1: 2.0})


@case
def py_datasets() -> dict[str, Any]:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            part = slice(index * BATCH, (index + 1) * BATCH)
            return FEATURES[part], LABELS[part]

    return trained(compiled(), x=Batches(), shuffle=False)


@case
def distributed_datasets() -> dict[str, Any]:
    """Made by the script for each worker, without an end."""

    def make(context: Any) -> Any:
        whole = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return whole.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(context.get_per_replica_batch_size(BATCH))

    data = strategy.distribute_datasets_from_function(make) if strategy.num_replicas_in_sync > 1 else batches().repeat()
    return trained(compiled(), x=data, steps_per_epoch=4)


@case
def uneven_data() -> dict[str, Any]:
    """One worker has more batches than the others, which go on with empty ones: all of them decide alike what follows."""
    count = 20 if os.environ.get("ORCH_TASK") == "worker-1" else 60
    own = tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count])).batch(8)
    data = strategy.distribute_datasets_from_function(lambda context: own) if strategy.num_replicas_in_sync > 1 else own
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10, restore_best_weights=True)
    found = trained(compiled(), epochs=5, callbacks=[stop], x=data, validation_data=(FEATURES[:count], LABELS[:count]))
    return {"of_the_workers": {**found, "epochs": len(found["loss"])}}


# --- models --------------------------------------------------------------------------------------


@case
def functional_models_with_dicts() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
        both = keras.layers.Concatenate()([left, right])
        outputs = {"kind": keras.layers.Dense(2, name="kind")(both), "size": keras.layers.Dense(1, name="size")(both)}
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile("sgd", loss={"kind": entropy(), "size": "mse"}, metrics={"kind": ["accuracy"], "size": ["mae"]})
    inputs = {"left": FEATURES[:, :4], "right": FEATURES[:, 4:]}
    data = tf.data.Dataset.from_tensor_slices((inputs, {"kind": LABELS, "size": FEATURES[:, :1]})).batch(BATCH)
    found = trained(model, x=data)
    return {**found, "predicted": {name: list(values.shape) for name, values in model.predict(data, verbose=0).items()}}


@case
def subclassed_models() -> dict[str, Any]:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.dense(inputs)

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Model()
        model.compile("adam", loss=entropy(), metrics=["accuracy"])
    return trained(model)


@case
def own_training_steps() -> dict[str, Any]:
    class Model(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Model([keras.layers.Input((8,)), keras.layers.Dense(2)])
        model.compile("sgd", loss=entropy())
    model.fit(batches(), epochs=2, verbose=0)
    return told(model)


@case
def regularizers() -> dict[str, Any]:
    return trained(compiled(keras.layers.Dense(4, kernel_regularizer="l2")))


@case
def metrics() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
        own = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
        model.compile("sgd", "binary_crossentropy", metrics=own, weighted_metrics=["accuracy"])
    weights = np.linspace(0, 1, 64).astype("float32")
    return trained(model, x=FEATURES, y=LABELS.astype("float32"), sample_weight=weights, batch_size=BATCH, shuffle=False)


@case
def mixed_precision() -> dict[str, Any]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return trained(compiled())
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def batch_normalization() -> dict[str, Any]:
    """Each replica normalises by its own part of the batch, so that one process gives other numbers: all workers give the same."""
    return {"of_the_workers": trained(compiled(keras.layers.BatchNormalization()), validation_data=batches(32))}


# --- ways to run ---------------------------------------------------------------------------------


@case
def evaluate() -> dict[str, Any]:
    return {name: float(value) for name, value in compiled().evaluate(batches(), verbose=0, return_dict=True).items()}


@case
def predict() -> dict[str, Any]:
    model = compiled()
    found = model.predict(batches(60), verbose=0)
    alone = FEATURES[:60] @ model.get_weights()[0] + model.get_weights()[1]
    return {"shape": list(found.shape), "in_order": bool(np.allclose(found, alone, atol=1e-4))}


@case
def train_on_batch() -> dict[str, Any]:
    model = compiled()
    logs = [model.train_on_batch(FEATURES[:BATCH], LABELS[:BATCH], return_dict=True) for _ in range(2)]
    return told(model, losses=[float(log["loss"]) for log in logs])


@case
def test_on_batch() -> dict[str, Any]:
    return {name: float(value) for name, value in compiled().test_on_batch(FEATURES[:BATCH], LABELS[:BATCH], return_dict=True).items()}


@case
def steps_per_execution() -> dict[str, Any]:
    model = compiled(steps_per_execution=3)  # 4 steps an epoch: the last execution is a short one
    found = trained(model, validation_data=batches(48))
    return {**found, "predicted": list(model.predict(batches(60), verbose=0).shape)}


@case
def run_eagerly() -> dict[str, Any]:
    return trained(compiled(run_eagerly=True), epochs=1)


@case
def jit_compile() -> dict[str, Any]:
    return trained(compiled(jit_compile=True), epochs=1)


# --- optimizers ----------------------------------------------------------------------------------


@case
def schedules_and_iterations() -> dict[str, Any]:
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model = compiled(optimizer=lambda: keras.optimizers.Adam(decay))
    found = trained(model)
    return {**found, "iterations": int(model.optimizer.iterations), "learning_rate_now": float(model.optimizer.learning_rate)}


# --- callbacks and files -------------------------------------------------------------------------


@case
def early_stopping_and_plateaus() -> dict[str, Any]:
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10, restore_best_weights=True)
    return trained(compiled(), epochs=5, callbacks=[stop, keras.callbacks.ReduceLROnPlateau("loss", patience=0)], x=batches(60))


@case
def learning_rate_scheduler() -> dict[str, Any]:
    return trained(compiled(), callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)])


@case
def model_checkpoint() -> dict[str, Any]:
    directory = SHARED / "checkpoints"
    each = keras.callbacks.ModelCheckpoint(str(directory / "{epoch:02d}.weights.h5"), save_weights_only=True)
    best = keras.callbacks.ModelCheckpoint(str(directory / "best.keras"), monitor="loss", save_best_only=True)
    found = trained(compiled(), callbacks=[each, best])
    return {**found, "best": float(best.best)}


@case
def backup_and_restore() -> dict[str, Any]:
    """The first training ends after an epoch; the second goes on from there."""

    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise InterruptedError

    directory = str(SHARED / "backup")
    with contextlib.suppress(InterruptedError):
        trained(compiled(), callbacks=[keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False), Crash()])
    if strategy.num_replicas_in_sync > 1:  # the others wait for the chief's backup, as they would after a restart
        strategy.reduce("SUM", tf.constant(1.0), axis=None)
    found = trained(compiled(), epochs=3, callbacks=[keras.callbacks.BackupAndRestore(directory)])
    return {**found, "epochs": len(found["loss"]), "is_left": any(Path(directory).rglob("*.*"))}


@case
def callbacks_of_the_chief_alone() -> dict[str, Any]:
    path = str(SHARED / "chiefs" / "{epoch}.weights.h5")
    own = [keras.callbacks.ModelCheckpoint(path, save_weights_only=True), keras.callbacks.BackupAndRestore(str(SHARED / "chiefs_backup"))]
    return trained(compiled(), callbacks=own if os.environ.get("ORCH_IS_CHIEF", "1") == "1" else [])


@case
def csv_logger() -> dict[str, Any]:
    found = trained(compiled(), callbacks=[keras.callbacks.CSVLogger(str(SHARED / "log.csv"))])
    return {**found, "lines": len((SHARED / "log.csv").read_text().splitlines())} if strategy.num_replicas_in_sync == 1 else found


@case
def tensorboard() -> dict[str, Any]:
    """Only the chief writes where all can see."""
    found = trained(compiled(), callbacks=[keras.callbacks.TensorBoard(str(SHARED / "board"), histogram_freq=1)])
    return {**found, "writers": len({path.name.split(".")[4] for path in (SHARED / "board" / "train").iterdir()})}


@case
def save_to_one_path() -> dict[str, Any]:
    model = compiled()
    trained(model, epochs=1)
    for _ in range(3):
        model.save(SHARED / "model.keras")
        again = keras.models.load_model(SHARED / "model.keras")
        model.save_weights(SHARED / "model.weights.h5")
        model.load_weights(SHARED / "model.weights.h5")
    return told(again)


@case
def export() -> dict[str, Any]:
    model = compiled()
    path = str(SHARED / f"exported-{os.environ.get('ORCH_TASK', '')}")
    model.export(path, verbose=False)
    served = tf.saved_model.load(path)
    return {"served": float(tf.reduce_sum(served.serve(FEATURES[:4])))}


def main() -> None:
    SHARED.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in sys.argv[2:] or CASES:
        print("case", name, flush=True)
        try:
            found[name] = CASES[name]()
        except Exception as error:
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
    RESULTS.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
