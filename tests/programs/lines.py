"""For each line about numbers a program of which it is true, and one, as near as can be, for which it must not appear: `run` tries both."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import worker

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # it gains nothing with graphs as small as these
strategy = worker.strategy()
keras: Any = tf.keras
INDEX = int(os.environ["ORCH_TASK"].rpartition("-")[2])
IS_KERAS_2 = keras.Model.__module__.startswith("tf_keras.")
Data = tf.data.Dataset
X: Any = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
Y: Any = X.sum(1, keepdims=True)
Program = Callable[[], Any]


def rows(count: int = 16) -> Any:
    return Data.from_tensor_slices((X[:count], Y[:count]))


OF_FIT = ("y", "sample_weight", "callbacks", "epochs", "steps_per_epoch", "validation_data", "validation_steps")
EVEN, UNEVEN = rows().batch(8), rows(13).batch(8)


def fit(layer: Any = None, data: Any = EVEN, *, kind: Any = None, optimizer: Any = "sgd", loss: Any = "mse", **options: Any) -> Any:
    """A model that has been trained for one epoch. `options`: those of `fit`, or else of `compile`."""
    of_fit = {name: options.pop(name) for name in OF_FIT if name in options}
    with strategy.scope():
        inputs = keras.Input((4,))
        outputs = inputs if layer is None else layer()(inputs)
        model = (kind or keras.Model)(inputs, keras.layers.Dense(1)(outputs))
        model.compile(optimizer, loss, **options)
    model.fit(data, batch_size=8 if "y" in of_fit else None, verbose=0, **of_fit)
    return model


class Own(keras.layers.Layer):
    """A layer that calls a function, or assigns its variable in `call`."""

    def __init__(self, function: Callable[[Any, Any], Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.function = function
        self.kept = self.add_weight(name="kept", shape=(), initializer="zeros", trainable=False, **options)

    def call(self, x: Any) -> Any:
        if self.function is None:
            self.kept.assign(tf.reduce_mean(x))
        else:
            self.function(self, x)
        return x


class Inferring(keras.layers.Layer):
    """A part of a trained model, which keeps its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.normalization = keras.layers.BatchNormalization()

    def call(self, x: Any) -> Any:
        return self.normalization(x, training=False)


def own(function: Callable[[Any, Any], Any]) -> Any:
    return lambda: Own(function)


class Step(keras.Model):
    """Trains by a step of its own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
        return {"shown": loss}

    def loss_of(self, y: Any, found: Any) -> Any:
        return self.compute_loss(y=y, y_pred=found)


class OfItself(Step):
    def loss_of(self, y: Any, found: Any) -> Any:
        return tf.reduce_mean((found - y) ** 2)


class WithPenalties(Step):
    """Adds what regularizers add to a loss of Keras."""

    def loss_of(self, y: Any, found: Any) -> Any:
        return keras.losses.MeanSquaredError()(y, found) + sum(self.losses)


class Clipped(Step):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, tf.clip_by_value(self(x, training=True), -1, 1))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(self.clip(grads), self.trainable_variables)
        return {"shown": loss}

    def clip(self, grads: Any) -> Any:
        return tf.clip_by_global_norm(grads, 0.1)[0]


class Assigned(Step):
    """Changes its weights without an optimizer."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True))
        for variable, gradient in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"shown": loss}


class NotClipped(Clipped):
    def clip(self, grads: Any) -> Any:
        return [0.5 * grad for grad in grads]


class Held(Clipped):
    """Gives an optimizer variables in place of gradients, of which TensorFlow names no operations."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held = [keras.Variable(tf.zeros(each.shape), trainable=False) for each in self.trainable_variables]

    def clip(self, grads: Any) -> Any:
        for held, grad in zip(self.held, grads, strict=True):
            held.assign(grad)
        return [held.value for held in self.held]


class OfRows(Step):
    """Takes the gradient of the losses of single rows, which is that of their sum."""

    def loss_of(self, y: Any, found: Any) -> Any:
        return keras.losses.MeanSquaredError(reduction="none")(y, found)

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"shown": tf.reduce_sum(super().train_step(data)["shown"])}


class Wholly(keras.Model):
    """Computes the loss, or adds to that of Keras."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        return tf.reduce_mean(y_pred**2)


class Partly(Wholly):
    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        return keras.Model.compute_loss(self, x, y, y_pred, sample_weight, training) + tf.reduce_mean(y_pred**2)


class Steps(keras.Model):
    def make_train_function(self, force: bool = False) -> None:
        def run(iterator):  # type: ignore[no-untyped-def]
            self.distribute_strategy.run(self.train_step, args=(next(iterator),))
            return {}

        self.train_function = tf.function(run)


def begin_another(*, in_thread: bool) -> None:
    """A `fit` that begins while another one is about to begin, and ends before its first step."""

    def end(*_: Any) -> None:
        raise KeyError("ends here")

    def begin(*_: Any) -> None:
        with contextlib.suppress(KeyError):
            fit(callbacks=[keras.callbacks.LambdaCallback(on_train_begin=end)])

    def begin_in_thread(*_: Any) -> None:
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()

    fit(callbacks=[keras.callbacks.LambdaCallback(on_train_begin=begin_in_thread if in_thread else begin)])


class Stop(keras.callbacks.Callback):
    """Stops these workers."""

    def __init__(self, *workers: int) -> None:
        super().__init__()
        self.workers = workers

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = INDEX in self.workers


class Unknown:
    """Stands for data that are not as orch thinks."""

    @property
    def _original_dataset(self) -> Any:
        raise ValueError("no dataset")


def outside() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(EVEN, verbose=0)


def policy(name: str) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[name]
    return EVEN.with_options(options)


def precision(name: str) -> None:
    keras.mixed_precision.set_global_policy(name)
    fit(lambda: keras.layers.Dense(2))
    keras.mixed_precision.set_global_policy("float32")


def penalised(version: str) -> None:
    module: Any = importlib.import_module("keras")
    before, module.__version__ = module.__version__, version or module.__version__
    fit(lambda: keras.layers.Dense(2, activity_regularizer="l2"))
    module.__version__ = before


def begun(times: int) -> None:
    """Batches of a dataset without an end, from one iterator or from two."""
    distributed = strategy.experimental_distribute_dataset(Data.range(32).shuffle(32).batch(8).repeat())
    for _ in range(times):
        for _ in distributed:
            break


def numbers(**options: Any) -> Any:
    return strategy.experimental_distribute_dataset(Data.range(16).map(lambda each: each, num_parallel_calls=2, **options).batch(8))


def read(dataset: Any) -> None:
    list(strategy.experimental_distribute_dataset(dataset))


def masked(mask: bool) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Embedding(5, 2, mask_zero=mask), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    tokens: Any = np.arange(48).reshape(8, 6) % 5
    model.fit(tokens, tokens[..., None].astype("float32"), batch_size=4, verbose=0)


def generated(**options: Any) -> Any:
    signature = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    return Data.from_generator(lambda: zip(X, Y, strict=True), output_signature=signature).batch(8, **options)


def batches_for_ever() -> Any:
    while True:
        yield X[:8], Y[:8]


def each_row(y: Any, found: Any) -> Any:
    return tf.reduce_mean(tf.square(y - found), axis=-1)


def one_number(y: Any, found: Any) -> Any:
    return tf.reduce_mean(tf.square(y - found))


def ranks(y: Any, found: Any) -> Any:
    """A number for each row, which depends on the other rows."""
    return tf.reduce_mean(tf.nn.relu(found - tf.transpose(found)), axis=-1)


def drawn(y: Any, found: Any) -> Any:
    return tf.reduce_mean(tf.square(y - found) * tf.random.uniform(tf.shape(y)))


def facts(data: Any) -> None:
    importlib.import_module("_orch_worker.task.input.given").facts(data, strategy)


def share(index: int) -> Any:
    return rows().shard(2, index).batch(4)


MEAN_LOSS: Any = keras.losses.MeanSquaredError
ONE_NUMBER = "a loss function that returns one number"
WEIGHTED: Any = {"data": X, "y": Y, "loss": None if IS_KERAS_2 else MEAN_LOSS(reduction="mean_with_sample_weight")}
LINES: dict[str, dict[str, tuple[Program, Program]]] = {
    "two workers": {
        "add_loss of": (
            lambda: fit(own(lambda layer, x: layer.add_loss(tf.reduce_sum(x**2)))),
            lambda: fit(own(lambda layer, x: layer.add_loss(MEAN_LOSS()(x, 2 * x)))),
        ),
        "OfItself computes its loss itself": (
            lambda: fit(kind=OfItself),
            lambda: fit(lambda: keras.layers.Dense(2, kernel_regularizer="l2"), kind=WithPenalties),
        ),
        "the program clips the gradients of each of the": (
            lambda: fit(kind=Clipped),
            lambda: [fit(kind=kind) for kind in (NotClipped, Held)],
        ),
        "OfRows computes its loss itself": (lambda: fit(kind=OfRows), lambda: fit(loss=MEAN_LOSS(reduction="none"))),
        "Wholly computes its loss itself": (lambda: fit(kind=Wholly), lambda: fit(kind=Partly)),
        "each validation begins with the generator's first 2": (
            lambda: fit(epochs=2, validation_data=batches_for_ever(), validation_steps=2),
            lambda: fit(epochs=1, validation_data=batches_for_ever(), validation_steps=2),
        ),
        "the program's make_train_function runs the steps": (lambda: fit(kind=Steps), lambda: fit(kind=Step)),
        "is not a mean over rows, so the numbers of 2": (
            lambda: fit(loss=ranks),
            lambda: [fit(loss=each) for each in (one_number, each_row, MEAN_LOSS(reduction="sum"), "binary_crossentropy")],
        ),
        "the loss 'circle' is not a mean over rows": (
            lambda: fit(lambda: keras.layers.Dense(4), data=X, y=np.arange(16) % 2, loss="circle"),
            lambda: fit(lambda: keras.layers.Dense(4), data=X, y=np.arange(16) % 2, loss="hinge"),
        ),
        " differs between the workers: the program has set": (lambda: fit(kind=Assigned), lambda: fit(kind=Step)),
        "made outside of a strategy's scope": (outside, fit),
        "mixed precision: a part of a batch overflows": (lambda: precision("mixed_float16"), lambda: precision("mixed_bfloat16")),
        "activity_regularizer: before Keras 3.14": (lambda: penalised("3.13.0"), lambda: penalised("")),
        "reduction='mean_with_sample_weight' divides": (lambda: fit(**WEIGHTED, sample_weight=Y[:, 0] ** 2), lambda: fit(**WEIGHTED)),
        f"{ONE_NUMBER} counts as the mean over its rows": (lambda: fit(loss=drawn), lambda: fit(loss=one_number)),
        " differs in each worker; the end of an epoch": (
            lambda: fit(Own),
            lambda: fit(own(lambda layer, x: layer.kept.assign(layer.kept + 1))),
        ),
        "jit_compile=True is ignored": (lambda: fit(jit_compile=True), lambda: fit(jit_compile="auto")),
        "has set stop_training, and other workers have not": (
            lambda: fit(callbacks=[Stop(1)]),
            lambda: fit(callbacks=[Stop(0, 1)]),
        ),
        "BatchNormalization uses the statistics of each worker's part": (
            lambda: fit(keras.layers.BatchNormalization),
            lambda: (fit(lambda: keras.layers.BatchNormalization(synchronized=True)), fit(Inferring)),
        ),
        "input: under the policy OFF": (lambda: fit(data=policy("OFF")), lambda: fit(data=policy("DATA"))),
        "the length of the dataset is unknown": (
            lambda: fit(data=EVEN.filter(lambda *_: True), optimizer="adam"),
            lambda: fit(data=EVEN.filter(lambda *_: True)),
        ),
        "predict: auto_shard data instead of": (
            lambda: fit().predict(policy("FILE"), verbose=0),
            lambda: fit().predict(policy("DATA"), verbose=0),
        ),
        "begins a dataset again that shuffles without an end": (lambda: begun(2), lambda: begun(1)),
        "has deterministic=False": (lambda: numbers(deterministic=False), lambda: numbers(deterministic=True)),
        "chooses elements by random numbers": (
            lambda: read(Data.range(16).filter(lambda _: tf.random.uniform(()) < 0.5).batch(2)),
            lambda: read(Data.range(16).map(lambda _: tf.random.uniform(()) < 0.5).batch(2)),
        ),
        "input: the program takes one of": (lambda: fit(data=share(INDEX)), lambda: fit(data=share(0))),
        "input: the data given in": (
            lambda: read(Data.from_tensor_slices([f"/data/{INDEX}/a", f"/data/{INDEX}/b{INDEX}"]).batch(2)),
            lambda: read(Data.from_tensor_slices([f"/data/{INDEX}/a", f"/data/{INDEX}/b"]).batch(2)),
        ),
        "input: the data of this worker are not compared": (
            lambda: facts(Unknown()),
            lambda: facts(strategy.experimental_distribute_dataset(EVEN)),
        ),
        "a dataset that repeats without end": (
            lambda: fit(data=EVEN.repeat(), callbacks=[Stop(0, 1)]),
            lambda: fit(data=EVEN.repeat(), callbacks=[Stop(0, 1)], steps_per_epoch=2),
        ),
        " of them get empty batches in every step": (
            lambda: worker.distribute(Data.range(8).batch(1)),
            lambda: worker.distribute(Data.range(8).batch(2)),
        ),
        "cannot be divided evenly": (
            lambda: worker.distribute(Data.range(9).batch(3)),
            lambda: worker.distribute(Data.range(9).batch(4)),
        ),
    },
    "MirroredStrategy": {
        f"{ONE_NUMBER}: Keras adds": (lambda: fit(loss=one_number), lambda: fit(loss=each_row)),
        ": Keras clips on each of the": (
            lambda: fit(optimizer=keras.optimizers.SGD(clipnorm=1.0)),
            lambda: fit(optimizer=keras.optimizers.SGD(clipnorm=None)),
        ),
        "mixed precision: an overflow in one of the": (lambda: precision("mixed_float16"), lambda: precision("mixed_bfloat16")),
        "a mask makes the loss a mean over unmasked": (lambda: masked(True), lambda: masked(False)),
        " replicas parts of different size. ": (lambda: fit(data=UNEVEN), fit),
        ". For such a batch, ": (lambda: fit(data=generated()), lambda: fit(data=generated(drop_remainder=True))),
        "what is a mean over the rows of a replica that gets none is NaN": (
            lambda: fit().evaluate(rows(9).batch(8), verbose=0),
            lambda: fit().evaluate(rows(10).batch(8), verbose=0),
        ),
        "predict_on_batch: Keras gives the batch to each": (lambda: fit().predict_on_batch(X), lambda: fit().predict(X, verbose=0)),
        "is not a mean over rows": (lambda: fit(metrics=[keras.metrics.AUC()]), lambda: fit(metrics=["mae"])),
        "the metric 'AUC' is not a mean over rows": (lambda: fit(metrics=["AUC"]), lambda: fit(metrics=["accuracy"])),
        "fit runs in two threads under one strategy": (lambda: begin_another(in_thread=True), lambda: begin_another(in_thread=False)),
    },
    "two workers, Keras 2": {
        " has a train_step of its own": (lambda: fit(kind=OfItself), fit),
        ": Keras 2 gives the batch to each": (lambda: fit().train_on_batch(X, Y), lambda: fit().predict_on_batch(X)),
        "the logs of single batches that Keras 2 gives": (
            lambda: fit(callbacks=[Stop()]),
            lambda: fit(callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)]),
        ),
        "a loss is a mean over elements that are not masked": (lambda: masked(True), lambda: masked(False)),
        f"{ONE_NUMBER} counts as the mean over its rows": (lambda: fit(loss=one_number), lambda: fit(loss=each_row)),
        "each worker assigns a value of its own to the variable": (
            lambda: fit(Own),
            lambda: fit(lambda: Own(aggregation=tf.VariableAggregation.MEAN)),
        ),
    },
}


def run(world: str) -> dict[str, list[bool]]:
    """By line: whether it was printed for the first program, and for the second one."""
    printed: set[str] = importlib.import_module("_orch_worker.task.patches.import_hooks")._printed
    found = {}
    for words, programs in LINES[world].items():
        found[words] = [False, False]
        for place, program in enumerate(programs):
            printed.clear()
            program()
            found[words][place] = any(words in line for line in printed)
    return found
