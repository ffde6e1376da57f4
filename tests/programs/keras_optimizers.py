"""The step of Keras 3's optimizers, case by case: `run` gives the weights and losses of each case.

The same module runs in one process, in the tasks of a cluster and under MirroredStrategy, each time on the same global batches from the
same first weights. Importing the module makes the strategy.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # graphs as small as these gain nothing by it
if "TF_CONFIG" in os.environ:
    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy()
elif len(tf.config.list_logical_devices("CPU")) > 1:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
else:
    strategy = tf.distribute.get_strategy()

keras: Any = importlib.import_module("keras")  # a strategy is made before anything else

optimizers = keras.optimizers
BATCH = 16
draws = np.random.default_rng(0)
FEATURES = draws.normal(size=(48, 8)).astype("float32")
LABELS = FEATURES.sum(axis=1, keepdims=True) * 3
WORDS = draws.integers(0, 7, (48, 4)).astype("float32")

Case = tuple[Callable[[], Any], dict[str, Any]]


class Halves(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred)) / 2


class Sum(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.square(y_true - y_pred))


def one_number(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y_true - y_pred))


SPARSE, NEVER_NEGATIVE = {"words": True}, {"constraint": "non_neg"}
AS_KERAS: dict[str, Case] = {
    "momentum": (lambda: optimizers.SGD(0.01, momentum=0.9), {}),
    "adam": (lambda: optimizers.Adam(0.01), {}),
    "decay": (lambda: optimizers.AdamW(0.01, weight_decay=0.1), {}),
    "sparse": (lambda: optimizers.SGD(0.01, momentum=0.9), SPARSE),
    "constraint": (lambda: optimizers.SGD(0.01), NEVER_NEGATIVE),
}
"""What Keras's own order does rightly."""
BEFORE_THE_SUM: dict[str, Case] = {
    "clipnorm": (lambda: optimizers.SGD(0.1, clipnorm=0.5), {}),
    "global_clipnorm": (lambda: optimizers.SGD(0.1, global_clipnorm=0.5), SPARSE),
    "clipvalue": (lambda: optimizers.SGD(0.1, clipvalue=0.1), {}),
    "decay_and_clipvalue": (lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipvalue=0.1), {}),
}
"""What Keras does before it adds the gradients."""
ONE_NUMBER: dict[str, Case] = {
    "function_of_one_number": (lambda: optimizers.SGD(0.01), {"loss": one_number}),
    "class_of_one_number": (lambda: optimizers.SGD(0.01), {"loss": Halves()}),
    "sum_that_is_one_number": (lambda: optimizers.SGD(0.001), {"loss": Sum(reduction="sum")}),
}
REFUSED: dict[str, Case] = {
    "accumulation": (lambda: optimizers.SGD(0.01, gradient_accumulation_steps=2), {}),
    "accumulation_and_clipnorm": (lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3, clipnorm=0.5), {}),
    "overwriting_averages": (lambda: optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2), {}),
}
"""What Keras refuses under a strategy with several replicas."""
OVERFLOW: dict[str, Case] = {"overflow": (lambda: optimizers.SGD(1e-4), {"dtype": "mixed_float16"})}
"""The gradients of the second replica overflow in the first step, and no others."""
CASES = {**AS_KERAS, **BEFORE_THE_SUM, **ONE_NUMBER, **REFUSED, **OVERFLOW}


def made(case: str) -> tuple[Any, Any]:
    make, options = CASES[case]
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy(options.get("dtype", "float32"))
    with strategy.scope():
        words = [keras.layers.Embedding(7, 3), keras.layers.Flatten()] if options.get("words") else []
        layers = [*words, keras.layers.Dense(4, kernel_constraint=options.get("constraint")), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((4,) if words else (8,)), *layers])
        model.compile(make(), options.get("loss", "mse"))
    keras.mixed_precision.set_global_policy("float32")
    features = (WORDS if words else FEATURES).copy()
    if case == "overflow":
        features[8:16] *= 50  # of the second replica in the first global batch
    return model, tf.data.Dataset.from_tensor_slices((features, LABELS)).batch(BATCH)


def weights(model: Any) -> list[float]:
    found = [float(number) for weight in model.get_weights() for number in weight.ravel()]
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return [*found, float(model.optimizer.iterations.numpy()), *([] if scale is None else [float(scale.numpy())])]


def run(names: Iterable[str]) -> dict[str, Any]:
    """What `fit` gives: losses and weights, or the error."""
    given: dict[str, Any] = {}
    for name in names:
        print("case", name, flush=True)
        model, data = made(name)
        try:
            losses = model.fit(data, epochs=2, verbose=0).history["loss"]
            given[name] = [*map(float, losses), *weights(model)]
        except Exception as error:
            given[name] = f"{type(error).__name__}: {error}"[:2000]
    return given


def own_loop(model: Any, data: Any) -> Any:
    """A step of a training loop with Keras's optimizer, as TensorFlow's guide has it, and the data for the step."""

    def compute(batch: Any) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            squares = tf.square(tf.cast(model(x, training=True), tf.float32) - y)[:, 0]
            loss = model.optimizer.scale_loss(tf.nn.compute_average_loss(squares, global_batch_size=BATCH))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return tf.function(lambda batch: strategy.run(compute, args=(batch,))), strategy.experimental_distribute_dataset(data)


def run_loops(names: Iterable[str], *, exact: bool) -> dict[str, list[float]]:
    """What a training loop of one's own gives, in Keras's own order or in orch's."""
    given = {}
    (module,) = [module for name, module in sys.modules.items() if name.endswith("worker.task.keras.optimizer")]
    task = module._task
    before, task.is_exact = task.is_exact, exact
    try:
        for name in names:
            model, data = made(name)
            step, batches = own_loop(model, data)
            for _ in range(3):
                for batch in batches:
                    step(batch)
            given[name] = weights(model)
    finally:
        task.is_exact = before
    return given


def ungated(names: Iterable[str]) -> dict[str, Any]:
    """Of a step in orch's order: how many collective operations there are, and which changes of variables do not wait for all of them."""
    return {name: _ungated(*made(name)) for name in names}


def _ungated(model: Any, data: Any) -> tuple[list[str], list[str]]:
    step, batches = own_loop(model, data)
    graph = step.get_concrete_function(next(iter(batches))).graph
    handles = {id(part.handle) for v in [*model.variables, *model.optimizer.variables] for part in getattr(v.value, "values", [v.value])}
    inner = {inside.name for outside, inside in graph.captures if id(outside) in handles}
    operations = graph.get_operations()
    collectives = {each.name for each in operations if each.type.startswith("Collective")}

    def is_write(each: Any) -> bool:
        changes = each.type.startswith(("Assign", "ResourceScatter", "ResourceApply")) or each.type in (
            "If",
            "While",
            "StatefulPartitionedCall",
        )
        return changes and any(value.name in inner for value in each.inputs)

    def waits_for(each: Any) -> set[str]:
        seen, todo = set(), [each]
        while todo:
            now = todo.pop()
            if now.name not in seen:
                seen.add(now.name)
                todo += [*(value.op for value in now.inputs), *now.control_inputs]
        return seen & collectives

    writes = [each for each in operations if is_write(each)]
    assert len(writes) > 0, "no variable is changed"
    types = sorted(each.type for each in operations if each.name in collectives)
    return types, [each.name for each in writes if waits_for(each) != collectives]


def empty_parts() -> list[float]:
    """A step in which the part of the second replica has no row: a row that stands in gives NaN, and counts nothing."""
    (module,) = [module for name, module in sys.modules.items() if name.endswith("worker.task.keras.one_replica")]
    model, _ = made("sparse")

    def compute() -> None:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        with module.seen(module.View(tf.where(tf.equal(index, 0), 1.0, 0.0), has_rows=tf.equal(index, 0))):
            scale = tf.where(tf.equal(index, 0), 1.0, np.nan)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(WORDS[:4], training=True) - LABELS[:4])) * scale
            variables = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(lambda: strategy.run(compute))
    for _ in range(2):
        step()
    return weights(model)
