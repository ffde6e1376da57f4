"""Trainings by Keras whose numbers depend on how workers share a batch, beside those of the judge: `run` gives what each case gave.

The same module runs alone and in the tasks of a cluster. The data is such that some parts of a batch are smaller than others, or empty.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

# It gains nothing with graphs as small as these, but users have it: with three workers it is on.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": os.environ.get("PARTS") != "3"})
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()

import keras  # noqa: E402 - a strategy is made before anything else

BATCH = 16
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
draws = np.random.default_rng(0)
ROWS = draws.normal(size=(96, 8)).astype("float32")
SUMS = ROWS.sum(axis=1, keepdims=True)
IMAGES = ROWS.reshape(96, 4, 2, 1)


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def batches(x: Any, y: Any, count: int, size: int = BATCH) -> Any:
    return tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).batch(size)


def compiled(*layers: Any, shape: tuple[int, ...] = (8,)) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input(shape), *(layer() for layer in layers), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def told(model: Any, history: Any = None, **more: Any) -> dict[str, Any]:
    logs = {name: np.asarray(values).tolist() for name, values in history.history.items()} if history is not None else {}
    return {**logs, "weights": [weight.ravel().tolist() for weight in model.get_weights()], **more}


def fitted(model: Any, x: Any, epochs: int = 2, **options: Any) -> dict[str, Any]:
    return told(model, model.fit(x, epochs=epochs, verbose=0, **options), iterations=int(model.optimizer.iterations))


# --- what a program makes itself --------------------------------------------------------------------


class Largest(keras.metrics.Metric):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.kept = self.add_weight(name="kept", initializer="zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.kept.assign(tf.maximum(self.kept, tf.reduce_max(tf.abs(y - y_pred))))

    def result(self) -> Any:
        return self.kept  # a variable, as in Keras's own example of a metric


class Running(Largest):
    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.kept.assign(0.9 * self.kept + 0.1 * tf.reduce_mean(tf.abs(y - y_pred)))


class Average(keras.metrics.Mean):
    """A mean over batches of what one batch gives."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(tf.reduce_max(tf.abs(y - y_pred)))


class Kept(Largest):
    def __init__(self, name: str) -> None:
        keras.metrics.Metric.__init__(self, name=name)
        self.kept = self.add_variable((), "zeros", name="kept", aggregation="mean")


class Latest(keras.metrics.Metric):
    """Keeps numbers of two types: the errors of the newest rows, and how many rows there were."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.kept = self.add_weight(name="kept", shape=(8,), initializer="zeros")
        self.rows = self.add_weight(name="rows", dtype="int32", initializer="zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        far = tf.reshape(tf.abs(y - y_pred), [-1])
        self.kept.assign(tf.concat([self.kept.value, far], 0)[-8:])
        self.rows.assign_add(tf.size(far))

    def result(self) -> Any:
        return tf.reduce_max(self.kept.value) + tf.cast(self.rows.value, tf.float32)


def farthest(y: Any, y_pred: Any) -> Any:
    return tf.reduce_max(tf.abs(y - y_pred))


def far(y: Any, y_pred: Any) -> Any:
    return tf.reduce_max(tf.abs(y - y_pred), axis=-1)


@case
def metrics_of_the_program() -> dict[str, Any]:
    model = compiled()
    own = [Largest("largest"), Running("running"), Average("average"), Kept("highest"), Latest("latest")]
    with strategy.scope():
        model.compile("sgd", "mse", metrics=[*own, farthest, far, "mae"])
    return fitted(model, batches(ROWS, SUMS, 81), validation_data=batches(ROWS, SUMS, 33))


class Shown(keras.Model):
    """Shows its losses as Keras's guide does, and a variable."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(loss)
        return {**{metric.name: metric.result() for metric in self.metrics}, "last": loss, "rate": self.optimizer.learning_rate}


class Objective(Shown):
    """Shows the loss of a loss object of its own."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        return keras.losses.MeanAbsoluteError()(y, y_pred)


@case
def losses_that_a_step_shows() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in (Shown, Objective):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            given = keras.Input((8,))
            model = kind(given, keras.layers.Dense(1)(given))
            model.compile("sgd", "mse")
        found |= {f"{kind.__name__} {name}": value for name, value in fitted(model, batches(ROWS, SUMS, 96)).items()}
    return found


class Combined(keras.Model):
    """Shows sums and multiples of the losses of Keras's loss objects."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shown = keras.metrics.Mean(name="mean_of_batches")

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            near, far = keras.losses.MeanSquaredError()(y, found), keras.losses.MeanAbsoluteError()(y, found)
            both = sum([near / 2, 0.25 * far])
        self.optimizer.apply(tape.gradient(both, self.trainable_variables), self.trainable_variables)
        self.shown.update_state(both)
        whole = near * self.distribute_strategy.num_replicas_in_sync  # by a program that knows of replicas
        return {"both": both, "difference": near - 3.0 * far, "whole": whole, "mean": self.shown.result()}


class Halved(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.5 * keras.losses.MeanSquaredError()(x, 2 * x))
        return x


@case
def losses_that_a_step_combines() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        given = keras.Input((8,))
        model = Combined(given, keras.layers.Dense(1)(given))
        model.compile(keras.optimizers.SGD(0.05))
    found = fitted(model, batches(ROWS, SUMS, 96))
    halved = compiled(lambda: keras.layers.Dense(4), Halved)
    return found | {f"halved {name}": value for name, value in fitted(halved, batches(ROWS, SUMS, 81)).items()}


def near_and_far(y: Any, y_pred: Any) -> Any:
    """A loss, or a metric, that adds the loss of one of Keras's loss objects to a mean of its own."""
    return keras.losses.MeanSquaredError()(y, y_pred) + 0.25 * tf.reduce_mean(tf.abs(y - y_pred))


class NearAndFar(keras.losses.Loss):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = keras.losses.MeanSquaredError(), keras.losses.Huber()

    def call(self, y: Any, y_pred: Any) -> Any:
        return self.near(y, y_pred) / 2 + self.far(y, y_pred)


@case
def losses_that_a_loss_combines() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, loss, eager in (("function", near_and_far, False), ("class", NearAndFar(), False), ("eager", near_and_far, True)):
        model = compiled(lambda: keras.layers.Dense(4))
        model.compile(keras.optimizers.SGD(0.02), loss, metrics=["mae", near_and_far], run_eagerly=eager)
        made = fitted(model, batches(ROWS, SUMS, 81), validation_data=batches(ROWS, SUMS, 33))
        found |= {f"{name} {key}": value for key, value in made.items()}
    return found


class OwnMeans(keras.Model):
    """Trains by means of its own, one of them beside a loss of Keras, with penalties of regularizers, and by two optimizers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.other = keras.optimizers.SGD(0.01)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            found = self(x, training=True)
            rebuilt = tf.reduce_mean(tf.reduce_sum(tf.abs(y - found), axis=-1)) + sum(self.losses)
            near = keras.losses.MeanSquaredError()(y, found)
            both = 0.5 * near + tf.reduce_mean(tf.square(found)) / self.distribute_strategy.num_replicas_in_sync
        kernel, bias = self.trainable_variables[:2]
        self.optimizer.apply_gradients([(tape.gradient(rebuilt, kernel), kernel)])
        self.other.apply(tape.gradient(both, [bias]), [bias])
        return {"rebuilt": rebuilt, "both": both, "near": near}


class Regularized(keras.Model):
    """Adds to the loss of Keras what the program computes, as Keras's page of the training API does."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.1 * tf.reduce_mean(tf.square(y_pred))


def average(y: Any, y_pred: Any) -> Any:
    """The loss of TensorFlow's guide to loops on several workers, given to `compile`."""
    return tf.nn.compute_average_loss(tf.reduce_mean(tf.square(y - y_pred), axis=-1), global_batch_size=BATCH)


@case
def losses_of_the_program() -> dict[str, Any]:
    found: dict[str, Any] = {}
    model = compiled()
    model.compile(keras.optimizers.SGD(0.01), average)
    found |= {f"average {key}": value for key, value in fitted(model, batches(ROWS, SUMS, 81)).items()}
    for kind, loss in ((OwnMeans, None), (Regularized, "mse"), (Regularized, keras.losses.MeanAbsoluteError(reduction="sum"))):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            given = keras.Input((8,))
            model = kind(given, keras.layers.Dense(1, kernel_regularizer="l2")(given))
            model.compile(keras.optimizers.SGD(0.01), loss)
            if kind is OwnMeans:
                model.other.build(model.trainable_variables[1:2])
        name = f"{kind.__name__} {getattr(loss, 'reduction', '')}"
        found |= {f"{name} {key}": value for key, value in fitted(model, batches(ROWS, SUMS, 81)).items()}
    return found


def mean_of_squares(y: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y - y_pred))


class MeanOfSquares(keras.losses.Loss):
    def call(self, y: Any, y_pred: Any) -> Any:
        return mean_of_squares(y, y_pred)


@case
def losses_of_one_number_with_weights() -> dict[str, Any]:
    """In one process such a loss is the mean over all rows times the mean of all weights, with and without a mask."""
    found: dict[str, Any] = {}
    of_rows = np.linspace(0, 2, 81).astype("float32")
    for name, loss, is_masked in (
        ("mean", mean_of_squares, False),
        ("by weights", MeanOfSquares(reduction="mean_with_sample_weight"), False),
        ("masked", mean_of_squares, True),
    ):
        x = np.random.default_rng(0).integers(0, 9, (81, 6)) if is_masked else ROWS[:81]
        y = np.cos(x)[..., None].astype("float32") if is_masked else SUMS[:81]
        one_each = of_rows[:, None] if is_masked else of_rows
        forms = {"none": (), "rows": (one_each,)} | ({"elements": (one_each * np.ones(x.shape, "float32"),)} if is_masked else {})
        for form, given in forms.items():
            keras.utils.set_random_seed(1)
            with strategy.scope():  # for each form: Keras's function of one form cannot take another one
                layers = [keras.layers.Embedding(9, 4, mask_zero=True)] if is_masked else []
                model = keras.Sequential([keras.Input(x.shape[1:]), *layers, keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(0.02), loss)
            made = fitted(model, tf.data.Dataset.from_tensor_slices((x, y, *given)).batch(BATCH))
            found |= {f"{name} {form} {key}": value for key, value in made.items()}
    return found


def correlation(y: Any, y_pred: Any) -> Any:
    """A number for each output, from all rows."""
    y, y_pred = y - tf.reduce_mean(y, 0), y_pred - tf.reduce_mean(y_pred, 0)
    return tf.reduce_sum(y * y_pred, 0) / tf.sqrt(tf.reduce_sum(y * y, 0) * tf.reduce_sum(y_pred * y_pred, 0) + 1e-6)


class MeansOfOutputs(keras.Model):
    """Takes the gradient of a mean over rows for each output."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)), axis=0)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": tf.reduce_sum(loss)}


class Together(keras.Model):
    """Trains by a step of its own, as Keras does, and shares moments among replicas."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@case
def numbers_for_each_output() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in (keras.Model, MeansOfOutputs):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            given = keras.Input((8,))
            model = kind(given, keras.layers.Dense(2)(given))
            model.compile("sgd", "mse", metrics=[correlation] if kind is keras.Model else None)
        two = batches(ROWS, np.concatenate([SUMS, -SUMS], 1), 86)
        found |= {f"{kind.__name__} {name}": value for name, value in fitted(model, two).items()}
    return found


@case
def moments_that_replicas_share_in_an_own_step() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        given = keras.Input((8,))
        hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(4)(given))
        model = Together(given, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
    return fitted(model, batches(ROWS, SUMS, 81))


@case
def parts_of_one_shuffle() -> dict[str, Any]:
    """Trainings, validations and predictions from one dataset draw its orders in turn, as many as in one process."""
    model = compiled()
    data = tf.data.Dataset.from_tensor_slices((ROWS[:81], SUMS[:81])).shuffle(81, seed=5).batch(BATCH)
    found = fitted(model, data, epochs=3, validation_data=data.take(2), validation_freq=2)
    more = [model.evaluate(data.take(1), verbose=0), model.predict(data, verbose=0).ravel().tolist()]
    return found | {"more": more, **{f"again {name}": value for name, value in fitted(model, data, epochs=1).items()}}


class Logarithm(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.debugging.check_numerics(tf.math.log(x), "a row of zeros")


@case
def rows_that_a_layer_checks() -> dict[str, Any]:
    rows = np.exp(ROWS / 8)
    return fitted(compiled(Logarithm), batches(rows, SUMS, 81), validation_data=batches(rows, SUMS, 33))


@case
def single_rows_eagerly() -> dict[str, Any]:
    """The second worker gets no row in any step."""
    model = compiled()
    model.compile("sgd", "mse", run_eagerly=True)
    return fitted(model, batches(ROWS, SUMS, 5, 1))


@case
def masks_of_different_length() -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.Input((6,)), keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    tokens = np.random.default_rng(0).integers(1, 9, (81, 6))
    tokens[8:16, 2:] = tokens[3, 1:] = 0
    return fitted(model, batches(tokens, np.cos(tokens)[..., None].astype("float32"), 81))


# --- parts that are smaller, or empty --------------------------------------------------------------


@case
def workers_whose_data_ends_early() -> dict[str, Any]:
    """Worker n has 20 + 8 n rows, in batches of 8. One process gets the parts of a step as one batch."""
    workers = int(os.environ["PARTS"])
    shares = [slice(start, start + 20 + 8 * index) for index, start in enumerate((0, 28, 60)[:workers])]

    def of_worker(index: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((IMAGES[shares[index]], SUMS[shares[index]])).batch(8)

    def parts() -> Any:
        for step in range(5):
            which = [slice(share.start + 8 * step, min(share.start + 8 * step + 8, share.stop)) for share in shares]
            yield tuple(np.concatenate([array[part] for part in which]) for array in (IMAGES, SUMS))

    if strategy.num_replicas_in_sync > 1:
        data = strategy.distribute_datasets_from_function(lambda context: of_worker(context.input_pipeline_id))
    else:
        signature = (tf.TensorSpec((None, 4, 2, 1)), tf.TensorSpec((None, 1)))
        data = tf.data.Dataset.from_generator(parts, output_signature=signature).apply(
            tf.data.experimental.assert_cardinality(3 + (workers > 1) + (workers > 2))
        )
    layers = (lambda: keras.layers.Conv2D(4, 2), keras.layers.Flatten, lambda: keras.layers.Dense(2, kernel_regularizer="l2"))
    return fitted(compiled(*layers, shape=(4, 2, 1)), data)


@case
def batches_with_fewer_rows_than_workers() -> dict[str, Any]:
    """The last worker never gets a row, neither in `fit` nor in `evaluate`."""
    size = max(int(os.environ["PARTS"]) - 1, 1)

    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return ROWS[index * size : (index + 1) * size], SUMS[index * size : (index + 1) * size]

    model = compiled()
    found = fitted(model, Data(), shuffle=False)
    weights = np.linspace(0.5, 2, len(ROWS), dtype="float32")
    weighed = model.evaluate(ROWS, SUMS, sample_weight=weights, batch_size=size, verbose=0)
    return {**found, "evaluated": model.evaluate(Data(), verbose=0), "weighed": weighed}


@case
def a_step_in_which_no_worker_has_a_row() -> dict[str, Any]:
    """The other workers have one more batch than the first, without rows. A metric of the program gathers what all have."""
    workers, signature = int(os.environ["PARTS"]), (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))

    def of_worker(index: int) -> Any:
        for step in range(2):
            begin = 6 * (step * workers + index)
            yield ROWS[begin : begin + 6], SUMS[begin : begin + 6]
        if index:
            yield ROWS[:0], SUMS[:0]

    if strategy.num_replicas_in_sync > 1:
        data = strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.from_generator(lambda: of_worker(context.input_pipeline_id), output_signature=signature)
        )
    else:
        data = batches(ROWS, SUMS, 12 * workers, 6 * workers)
    model = compiled()
    with strategy.scope():
        model.compile("sgd", "mse", metrics=[Largest("largest"), Latest("latest"), "mae"])
    return told(model, model.fit(data, epochs=2, verbose=0))


@case
def whole_batches_of_workers_whose_data_ends_early() -> dict[str, Any]:
    """TensorFlow takes the size of a batch for known here."""
    if strategy.num_replicas_in_sync > 1:

        def of_worker(context: Any) -> Any:
            count = 16 if context.input_pipeline_id else 8
            return tf.data.Dataset.from_tensor_slices((ROWS[:count], SUMS[:count])).batch(8, drop_remainder=True)

        data = strategy.distribute_datasets_from_function(of_worker)
    else:
        workers = int(os.environ["PARTS"])
        x, y = (np.concatenate([array[:8]] * workers + [array[8:16]] * (workers - 1)) for array in (ROWS, SUMS))
        data = batches(x, y, len(x), 8 * workers)
    return fitted(compiled(), data)


def endless() -> dict[str, Any]:
    """Data without an end: batches that are whole for certain, batches after a `map`, and a smaller last batch in each pass."""
    whole = tf.data.Dataset.from_tensor_slices((ROWS[:40], SUMS[:40])).repeat().batch(BATCH).prefetch(1)
    return {"whole": whole, "mapped": whole.map(lambda x, y: (x, y)), "smaller": batches(ROWS, SUMS, 40).repeat()}


@case
def data_without_an_end() -> dict[str, Any]:
    found = {name: fitted(compiled(), data, steps_per_epoch=4) for name, data in endless().items()}
    return {f"{name}_{key}": value for name, of_name in found.items() for key, value in of_name.items()}


def messages_of_a_step() -> dict[str, int]:
    """How many messages between the workers a step of `fit` has, for each sort of data without an end."""
    real, counted = cross_device_utils.CollectiveReplicaLauncher.all_reduce, []

    def all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            counted.append(1)
        return real(self, *args, **kwargs)

    found = {}
    for name, data in endless().items():
        model = compiled()
        model.optimizer.build(model.trainable_variables)
        cross_device_utils.CollectiveReplicaLauncher.all_reduce = all_reduce
        counted.clear()
        model.fit(data, steps_per_epoch=2, verbose=0)
        found[name] = len(counted)
        cross_device_utils.CollectiveReplicaLauncher.all_reduce = real
    return found


def calls_of_a_step() -> float:
    """How many functions a step of `fit` calls, without those of TensorFlow that run it."""
    guard: Any = importlib.import_module("_orch_worker.task.patches.guard")
    called, running, steps = list[str](), list[Any](), range(5, 25)

    def see(frame: Any, event: str, _: Any) -> None:
        if event == "call" and not running and frame.f_code in guard._theirs:
            running.append(frame)
        elif event == "return" and running == [frame]:
            running.clear()
        elif event in ("call", "c_call") and not running:
            called.append(frame.f_code.co_name)

    class Counted(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == steps.start:
                sys.setprofile(see)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == steps.stop - 1:
                sys.setprofile(None)

    compiled().fit(batches(ROWS, SUMS, 100, 2), verbose=0, callbacks=[Counted()])
    return len(called) / len(steps)


def messages_of_evaluations() -> list[tuple[int, int]]:
    """How many messages with numbers of rows two evaluations of 40 batches send, and how many messages are in the graphs that they make."""
    evaluations: Any = importlib.import_module("_orch_worker.task.keras.evaluations")
    evaluations.TOGETHER_S = 1e9  # as if no batch took any time
    launcher = cross_device_utils.CollectiveReplicaLauncher
    of_all, all_reduce, found = evaluations.given.of_all, launcher.all_reduce, [Counter[str]()]

    def told(*args: Any) -> Any:
        found[-1]["told"] += 1
        return of_all(*args)

    def reduced(*args: Any, **kwargs: Any) -> Any:
        found[-1]["traced"] += not tf.executing_eagerly()
        return all_reduce(*args, **kwargs)

    evaluations.given.of_all, launcher.all_reduce = told, reduced
    compiled().evaluate(batches(ROWS, SUMS, 80, 2), verbose=0)  # it makes the graph for the numbers of rows, too
    model = compiled()
    for _ in range(2):
        found.append(Counter())
        model.evaluate(batches(ROWS, SUMS, 80, 2), verbose=0)
    evaluations.given.of_all, launcher.all_reduce = of_all, all_reduce
    return [(counted["told"], counted["traced"]) for counted in found[1:]]


# --- metrics and logs ------------------------------------------------------------------------------


@case
def logs_of_an_own_step() -> dict[str, Any]:
    """An own `train_step` gives each part the same weight; whole batches of two workers are even."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
            return {"mean": tf.reduce_mean(x), "vector": tf.reduce_mean(x, 0), "steps": self.optimizer.iterations.value}

    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((8,))
        model = Own(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    history = model.fit(batches(ROWS, SUMS, 96, 48), epochs=2, verbose=0)
    return {name: np.asarray(values).tolist() for name, values in history.history.items()}


@case
def logs_of_an_own_test_step() -> dict[str, Any]:
    """As in Keras's guide: what all compiled metrics give has one name, and a mean over batches shows the loss. Own losses, too."""

    class Own(keras.Model):
        def test_step(self, data: Any) -> Any:
            x, y = data
            y_pred = self(x)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, y_pred)))
            return {metric.name: metric.result() for metric in self.metrics}

    class OwnLosses(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.shown = {reduction: keras.metrics.Mean(name=reduction) for reduction in ("sum", "sum_over_batch_size")}

        @property
        def metrics(self) -> Any:
            return list(self.shown.values())

        def test_step(self, data: Any) -> Any:
            x, y = data
            for reduction, metric in self.shown.items():
                metric.update_state(keras.losses.MeanSquaredError(reduction=reduction)(y, self(x)))
            return {metric.name: metric.result() for metric in self.metrics}

    def evaluated(kind: Any, loss: Any, *sizes: tuple[int, int]) -> list[float]:
        keras.utils.set_random_seed(1)
        with strategy.scope():
            inputs = keras.Input((8,))
            model = kind(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", loss, metrics=["mae", keras.metrics.RootMeanSquaredError(name="root")])
        found = [model.evaluate(batches(ROWS, SUMS, *each), verbose=0, return_dict=True) for each in sizes]
        return [float(each[name]) for each in found for name in sorted(each)]

    summed = keras.losses.MeanSquaredError(reduction="sum")
    return {
        "mean": evaluated(Own, "mse", (37, 8), (9, 2)),
        "sum": evaluated(Own, summed, (37, 8), (9, 2)),
        "own": evaluated(OwnLosses, "mse", (37, 8), (9, 2)),
    }


@case
def means_that_an_own_test_step_shows() -> dict[str, Any]:
    """As Keras's variational autoencoder: means over batches of numbers that the program computes, by other names; and such a number."""

    class Own(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.shown = keras.metrics.Mean(name="total_loss")

        @property
        def metrics(self) -> Any:
            return [self.shown]

        def test_step(self, data: Any) -> Any:
            x, y = data
            loss = tf.reduce_mean(tf.square(y - self(x)))
            self.shown.update_state(loss)
            summed = keras.losses.MeanSquaredError(reduction="sum")(y, self(x))
            mean, known = keras.losses.MeanSquaredError()(y, self(x)), tf.reduce_all(tf.math.is_finite(y))
            return {"loss": self.shown.result(), "last": loss, "mean": mean, "sum": summed, "half": 0.5, "known": known}

    return evaluated(Own, lambda given: keras.layers.Dense(1)(given), "mse")


@case
def metrics_that_an_own_test_step_shows_by_other_names() -> dict[str, Any]:
    class Own(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.area, self.share = keras.metrics.AUC(name="area"), keras.metrics.Precision(name="share")
            self.own = Largest("kept")

        @property
        def metrics(self) -> Any:
            return [self.area, self.share, self.own]

        def test_step(self, data: Any) -> Any:
            x, y = data
            for metric in self.metrics:
                metric.update_state(tf.cast(y > 0, "float32"), self(x))
            return {"auc": self.area.result(), "precision": self.share.result(), "largest": self.own.result()}

    return evaluated(Own, lambda given: keras.layers.Dense(1, "sigmoid")(given), "mse")


@case
def metrics_with_a_number_of_the_program() -> dict[str, Any]:
    class Own(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "rate": self.optimizer.learning_rate, "far": farthest(y, y)}

    return evaluated(Own, lambda given: keras.layers.Dense(1, "sigmoid")(given), "mse", keras.metrics.RootMeanSquaredError(name="root"))


@case
def losses_of_outputs_with_an_own_train_step() -> dict[str, Any]:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            raise NotImplementedError

    def outputs(given: Any) -> Any:
        return [keras.layers.Dense(1, name=name)(given) for name in "ab"]

    return evaluated(Own, outputs, ["mse", "mae"])


def evaluated(kind: Any, outputs: Any, loss: Any, *metrics: Any) -> dict[str, Any]:
    """What a model of this kind shows of batches whose last one is smaller, and of some that not all workers have a row of."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((8,))
        model = kind(inputs, outputs(inputs))
        model.compile("sgd", loss, metrics=[*metrics])
    y = (lambda y: (y, -y)) if isinstance(loss, list) else (lambda y: y)
    data = [batches(ROWS, SUMS, *each).map(lambda x, of_row: (x, y(of_row))) for each in ((37, 8), (9, 2))]
    found = [model.evaluate(each, verbose=0, return_dict=True) for each in data]
    return {name: [float(each[name]) for each in found] for name in found[0]}


@case
def a_step_that_takes_all_of_the_data_for_x() -> dict[str, Any]:
    """As Keras's example of a Siamese network: Keras cannot build the model from what it takes for `x`, and need not."""

    class Own(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.shown = inner, keras.metrics.Mean(name="loss")

        def call(self, pair: Any) -> Any:
            one, other = pair
            return tf.reduce_sum(tf.square(self.inner(one) - self.inner(other)), -1)

        def train_step(self, pair: Any) -> Any:
            with tf.GradientTape() as tape:
                far = self(pair)
            self.optimizer.apply(tape.gradient(far, self.trainable_variables), self.trainable_variables)
            self.shown.update_state(far)
            return {"loss": self.shown.result()}

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Own(keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2)]))
        model.compile(keras.optimizers.SGD(1e-3))
    return fitted(model, batches(ROWS, ROWS[::-1].copy(), 96))


@case
def a_schedule_with_a_condition() -> dict[str, Any]:
    """A learning rate whose schedule gives numbers from the branches of a condition."""

    class Falls(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            high, low = tf.constant(0.1), tf.constant(0.01)
            rate, factor = keras.ops.cond(step < 3, lambda: (high, high * 10), lambda: (low, low * 200))
            return rate * factor

    model = compiled()
    model.compile(keras.optimizers.SGD(Falls()), "mse")
    return fitted(model, batches(ROWS, SUMS, 81))


# --- steps and state ---------------------------------------------------------------------------------


@case
def state_of_own_layers() -> dict[str, Any]:
    """Variables of each aggregation that a layer assigns itself. Each step of one process sees the mean of the whole batch."""

    class Moving(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            add = {"shape": (), "initializer": "zeros", "trainable": False}
            self.mean = self.add_weight(**add, name="mean")
            self.count = self.add_weight(**add, name="count", dtype="int32")
            self.first = self.add_weight(**add, name="first", aggregation="only_first_replica")
            self.shared = self.add_weight(**add, name="shared", aggregation="mean")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                mean = tf.reduce_mean(x)
                self.mean.assign(0.5 * self.mean + mean)
                self.shared.assign(0.5 * self.shared + mean)
                self.first.assign(mean)
                self.count.assign_add(1)
            return x

    model = compiled(Moving)
    model.fit(batches(ROWS, SUMS, 96, 48), epochs=2, verbose=0)
    layer = model.layers[0]
    return {name: float(getattr(layer, name).numpy()) for name in ("mean", "count", "shared")}


class Stop(keras.callbacks.Callback):
    """Sets `stop_training` in the last worker alone, or in all workers, at a step or at the end of an epoch."""

    def __init__(self, *, step: int | None, alone: bool) -> None:
        super().__init__()
        is_one_process = strategy.num_replicas_in_sync == 1
        self.step, self.steps = step, 0
        if step is not None and alone and is_one_process:
            self.step = step + 1  # the others have begun the next step when the last worker wants to stop
        self.acts = not alone or is_one_process or os.environ["ORCH_TASK"] != "worker-0"

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.step == self.steps and self.acts:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.step is None and epoch == 1 and self.acts:
            self.model.stop_training = True


@case
def stops_of_one_worker() -> dict[str, Any]:
    """A stop after an epoch, and after a step, of one worker and of all."""
    found = {}
    for name, options in (
        ("epoch", {"step": None, "alone": True}),
        ("step", {"step": 8, "alone": True}),
        ("all", {"step": 8, "alone": False}),
    ):
        found[name] = fitted(
            compiled(), batches(ROWS, SUMS, 81), epochs=5, callbacks=[Stop(**options)], validation_data=batches(ROWS, SUMS, 33)
        )
    return {f"{name}_{key}": value for name, of_name in found.items() for key, value in of_name.items()}


@case
def a_stop_by_a_function_elsewhere() -> dict[str, Any]:
    """All workers stop at once, though no code of the callback names what it sets, and the data never end."""
    model, seen = compiled(), []

    class Elsewhere(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)
            if len(seen) == 8:
                end(self.model)

    return {**fitted(model, batches(ROWS, SUMS, 81).repeat(), callbacks=[Elsewhere()]), "steps": len(seen)}


def end(model: Any) -> None:
    model.stop_training = True


def meet() -> None:
    """Wait until all workers are here."""
    if strategy.num_replicas_in_sync > 1:
        strategy.reduce("SUM", tf.constant(1.0), axis=None)


def save_in_turn(directory: str, order: list[str], ending: str) -> dict[str, float]:
    """The state of this worker and the state in the file, when workers save at a step, where their states differ, in this order."""
    model = compiled(keras.layers.BatchNormalization)
    path = os.path.join(directory, f"{'-'.join(order)}.{ending}")

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.state = float(self.model.layers[0].moving_mean.numpy()[0])
            for task in order:
                if os.environ["ORCH_TASK"] == task:
                    self.model.save_weights(path) if ending == "weights.h5" else self.model.save(path)
                    assert os.path.exists(path)
                meet()

    save = Save()
    model.fit(batches(ROWS, SUMS, 48), epochs=1, verbose=0, callbacks=[save])
    if ending == "weights.h5":
        model.load_weights(path)
    else:
        model = keras.models.load_model(path)
    return {"own": save.state, "saved": float(model.layers[0].moving_mean.numpy()[0])}


def run(names: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    return {name: CASES[name]() for name in names or CASES}
