"""Keras's API, case by case: `run` gives what each case gave. With ``TF_USE_LEGACY_KERAS=1`` it is Keras 2's.

The same module runs alone and in the tasks of a cluster, where importing it makes the strategy. A case trains a small model on the same
global batches from the same first weights, so that its losses, metrics and weights are to be equal, wherever it runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# TensorFlow's optimizer of graphs takes a third of the time here, and graphs as small as these gain nothing by it.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()

is_keras_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
keras: Any = importlib.import_module("tf_keras" if is_keras_2 else "keras")  # a strategy is made before anything else

BATCH = 16
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
SHARED = Path()
"""A directory that all workers see; `run` sets it."""

draws = np.random.default_rng(0)
FEATURES = draws.normal(size=(64, 8)).astype("float32")
LABELS = (FEATURES.sum(axis=1) > 0).astype("int64")


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def also(*names: str) -> Callable[[Callable[[], dict[str, Any]]], Callable[[], dict[str, Any]]]:
    """The training of one case shows these as well."""

    def name(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        CASES.update(dict.fromkeys(names, function))
        return function

    return name


def entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(*layers: Any, **options: Any) -> Any:
    """A model of these layers before the last one, with the same first weights each time."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), *layers, keras.layers.Dense(2)])
        model.compile("sgd", loss=entropy(), metrics=["accuracy"], **options)
    return model


PLAIN: list[Any] = []


def plain() -> Any:
    """The model of `compiled()`, as it was first. TensorFlow traces it once for all cases whose data look alike."""
    if not PLAIN:
        PLAIN.append(compiled())
        PLAIN.append(PLAIN[0].get_weights())
    model, weights = PLAIN
    model.set_weights(weights)
    model.optimizer.iterations.assign(0)
    model.optimizer.learning_rate = 0.01
    return model


def batches(count: int = 64) -> Any:
    return tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count])).batch(BATCH)


def told(model: Any, history: Any = None, **more: Any) -> dict[str, Any]:
    """The losses and metrics of each epoch, and what there is of the weights."""
    logs = {name: [float(value) for value in values] for name, values in history.history.items()} if history is not None else {}
    return {**logs, "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()], **more}


def trained(model: Any, epochs: int = 1, **options: Any) -> dict[str, Any]:
    return told(model, model.fit(options.pop("x", batches()), epochs=epochs, verbose=0, **options))


def meet() -> None:
    """Wait until all workers are here."""
    if strategy.num_replicas_in_sync > 1:
        strategy.reduce("SUM", tf.constant(1.0), axis=None)


# --- data ----------------------------------------------------------------------------------------


@case
def datasets() -> dict[str, Any]:
    return trained(compiled(), epochs=2, validation_data=batches(32))


@case
def a_last_batch_that_is_smaller() -> dict[str, Any]:
    return trained(plain(), epochs=2, x=batches(60))


@case
def numpy_arrays() -> dict[str, Any]:
    return trained(plain(), x=FEATURES, y=LABELS, batch_size=BATCH, shuffle=False, validation_split=0.25)


@case
def generators() -> dict[str, Any]:
    def forever() -> Iterator[Any]:
        while True:
            for first in range(0, 64, BATCH):
                yield FEATURES[first : first + BATCH], LABELS[first : first + BATCH]

    return trained(compiled(), epochs=2, x=forever(), steps_per_epoch=4)


@case
def py_datasets() -> dict[str, Any]:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            part = slice(index * BATCH, (index + 1) * BATCH)
            return FEATURES[part], LABELS[part]

    return trained(plain(), epochs=2, x=Batches(), shuffle=False)


@case
def distributed_datasets() -> dict[str, Any]:
    """Made by the script for each worker, without an end."""

    def make(context: Any) -> Any:
        whole = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return whole.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(context.get_per_replica_batch_size(BATCH))

    data = strategy.distribute_datasets_from_function(make) if strategy.num_replicas_in_sync > 1 else batches().repeat()
    return trained(plain(), epochs=2, x=data, steps_per_epoch=4)


@case
def uneven_data() -> dict[str, Any]:
    """One worker has more batches than the others, which go on with empty ones: all of them decide alike what follows."""
    count = 20 if os.environ.get("ORCH_TASK") == "worker-1" else 60
    own = tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count])).batch(8)
    data = strategy.distribute_datasets_from_function(lambda context: own) if strategy.num_replicas_in_sync > 1 else own
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10, restore_best_weights=True)
    found = trained(plain(), epochs=5, callbacks=[stop], x=data, validation_data=(FEATURES[:count], LABELS[:count]))
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
@also("class_weights", "schedules_and_iterations")
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
        decay = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        model.compile(keras.optimizers.Adam(decay), loss=entropy(), metrics=["accuracy"])
    found = trained(model, class_weight={0: 1.0, 1: 2.0})
    return {**found, "iterations": int(model.optimizer.iterations), "learning_rate_now": float(model.optimizer.learning_rate)}


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
    model.fit(batches(), verbose=0)
    return told(model)


@case
@also("sample_weights", "regularizers")
def metrics() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = (keras.layers.Input((8,)), keras.layers.Dense(4, kernel_regularizer="l2"), keras.layers.Dense(1, "sigmoid"))
        model = keras.Sequential(layers)
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
    return {name: float(value) for name, value in plain().evaluate(batches(), verbose=0, return_dict=True).items()}


@case
def predict() -> dict[str, Any]:
    model = plain()
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
    model = compiled(steps_per_execution=2)  # 3 steps an epoch: the last execution is a short one
    found = trained(model, x=batches(48), validation_data=batches(48))
    return {**found, "predicted": list(model.predict(batches(44), verbose=0).shape)}


@case
def run_eagerly() -> dict[str, Any]:
    return trained(compiled(run_eagerly=True))


@case
def jit_compile() -> dict[str, Any]:
    return trained(compiled(jit_compile=True))


# --- callbacks and files -------------------------------------------------------------------------


@case
def early_stopping_and_plateaus() -> dict[str, Any]:
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10, restore_best_weights=True)
    return trained(plain(), epochs=5, callbacks=[stop, keras.callbacks.ReduceLROnPlateau("loss", patience=0)], x=batches(60))


@case
def model_checkpoint() -> dict[str, Any]:
    directory = SHARED / "checkpoints"
    each = keras.callbacks.ModelCheckpoint(str(directory / "{epoch:02d}.weights.h5"), save_weights_only=True)
    best = keras.callbacks.ModelCheckpoint(str(directory / "best.keras"), monitor="loss", save_best_only=True)
    found = trained(plain(), epochs=2, callbacks=[each, best])
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
        trained(compiled(), epochs=2, callbacks=[keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False), Crash()])
    meet()  # the others wait for the chief's backup, as they would after a restart
    found = trained(compiled(), epochs=3, callbacks=[keras.callbacks.BackupAndRestore(directory)])
    meet()  # the others may still be tidying up
    return {**found, "epochs": len(found["loss"]), "is_left": any(Path(directory).rglob("*.*"))}


@case
def callbacks_of_the_chief_alone() -> dict[str, Any]:
    path = str(SHARED / "chiefs" / "{epoch}.weights.h5")
    own = [keras.callbacks.ModelCheckpoint(path, save_weights_only=True), keras.callbacks.BackupAndRestore(str(SHARED / "chiefs_backup"))]
    return trained(plain(), callbacks=own if os.environ.get("ORCH_IS_CHIEF", "1") == "1" else [])


@case
@also("csv_logger", "learning_rate_scheduler")
def tensorboard() -> dict[str, Any]:
    """Only the chief writes where all can see."""
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    board = keras.callbacks.TensorBoard(str(SHARED / "board"), histogram_freq=1)
    found = trained(plain(), epochs=2, callbacks=[halve, board, keras.callbacks.CSVLogger(str(SHARED / "log.csv"))])
    written = {"writers": len({path.name.split(".")[4] for path in (SHARED / "board" / "train").iterdir()})}
    if strategy.num_replicas_in_sync == 1:  # the others may look before the chief has closed it
        written["lines"] = len((SHARED / "log.csv").read_text().splitlines())
    return {**found, **written}


@case
def save_to_one_path() -> dict[str, Any]:
    model = plain()
    trained(model)
    for _ in range(3):
        model.save(SHARED / "model.keras")
        again = keras.models.load_model(SHARED / "model.keras")
        model.save_weights(SHARED / "model.weights.h5")
        model.load_weights(SHARED / "model.weights.h5")
    return told(again)


@case
def export() -> dict[str, Any]:
    model = plain()
    path = str(SHARED / f"exported-{os.environ.get('ORCH_TASK', '')}")
    model.export(path, verbose=False)
    served = tf.saved_model.load(path)
    return {"served": float(tf.reduce_sum(served.serve(FEATURES[:4])))}


def run(shared: str, names: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """What these cases, or all, give, by name. `shared`: a directory that all workers see."""
    global SHARED
    SHARED = Path(shared)
    SHARED.mkdir(exist_ok=True)
    given: dict[Callable[[], dict[str, Any]], dict[str, Any]] = {}
    for name in names or CASES:
        made = CASES[name]
        if made in given:
            continue
        print("case", name, flush=True)
        try:
            given[made] = made()
        except Exception as error:
            traceback.print_exc()
            given[made] = {"error": f"{type(error).__name__}: {error}"[:2000]}
    return {name: given[CASES[name]] for name in names or CASES}
