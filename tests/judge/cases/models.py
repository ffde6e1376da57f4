"""Kinds of models, and ways to run them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..case import Case, Result, add, case
from ..place import BATCH, Place


def _on_rows(place: Place, build: Any, **options: Any) -> Result:
    x = place.draws(8)
    return place.fit(place.kept(build), place.dataset(x, place.target(x)), **options)


@case("models", "a subclass of Model")
def subclass(place: Place) -> Result:
    return _on_rows(place, lambda: _own(place, place.keras.Model))


def _own(place: Place, base: Any, metrics: tuple[str, ...] = ("mae",), **methods: Any) -> Any:
    layers = place.keras.layers

    def __init__(self: Any) -> None:
        base.__init__(self)
        self.hidden, self.last = layers.Dense(4, "tanh"), layers.Dense(1)

    def call(self: Any, x: Any, training: Any = False) -> Any:
        return self.last(self.hidden(x))

    model = type("Own", (base,), {"__init__": __init__, "call": call, **methods})()
    model.compile(place.keras.optimizers.SGD(0.05), "mse", metrics=list(metrics) or None)
    model(place.tf.zeros((1, 8)))
    return model


@case("models", "a functional model with two outputs")
def outputs(place: Place) -> Result:
    def build() -> Any:
        keras = place.keras
        inputs = keras.Input((8,))
        model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
        model.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.5])
        return model

    x = place.draws(8)
    y = place.target(x)
    return place.fit(place.kept(build), place.dataset(x, (y, y)))


@case("models", "shared layers, and layers that do not train")
def shared(place: Place) -> Result:
    def build() -> Any:
        keras = place.keras
        inputs, dense, frozen = keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, trainable=False)
        frozen.build((None, 8))
        frozen.set_weights([np.eye(8), np.zeros(8)])
        model = keras.Model(inputs, keras.layers.Dense(1)(dense(frozen(dense(inputs)))))
        model.compile("sgd", "mse")
        return model

    return _on_rows(place, build)


def _train_step(self: Any, data: Any) -> dict[str, Any]:
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        loss = self.compute_loss(x, y, self(x, training=True))
    variables = self.trainable_variables
    self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    for metric in self.metrics:
        if metric.name != "loss":
            metric.update_state(y, self(x))
    return {metric.name: metric.result() for metric in self.metrics}


@case("models", "a train_step of one's own: the weights")
def train_step(place: Place) -> Result:
    found = _on_rows(place, lambda: _own(place, place.keras.Model, train_step=_train_step))
    return {name: found[name] for name in ("weights", "iterations")}


def _own_mean(self: Any, data: Any) -> dict[str, Any]:
    """As Keras's guide "Customizing fit": a loss by `mean_squared_error`, and a `Mean` that shows it."""
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
    variables = self.trainable_variables
    self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return {"own": loss}


@case("models", "a train_step that computes the mean over its part", says="computes its loss itself|has a train_step of its own")
def mean_step(place: Place) -> Result:
    return _on_rows(place, lambda: _own(place, place.keras.Model, metrics=(), train_step=_own_mean))


@case("models", "a train_step and a test_step, without call(): a GAN", forms=("even", "tiny"), compare="finite", because="noise of its own")
def gan(place: Place) -> Result:
    keras, tf = place.keras, place.tf

    class Gan(keras.Model):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.critic, self.maker = keras.Sequential([keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(8)])
            self.shown = keras.metrics.Mean(name="shown")

        @property
        def metrics(self) -> Any:
            return [self.shown]

        def train_step(self, data: Any) -> Any:
            noise = tf.random.normal((tf.shape(data)[0], 4))
            with tf.GradientTape(persistent=True) as tape:
                made = self.critic(self.maker(noise))
                loss = tf.reduce_mean(made) - tf.reduce_mean(self.critic(data))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.critic.trainable_weights), self.critic.trainable_weights, strict=True)
            )
            self.shown.update_state(loss)
            return {"shown": self.shown.result()}

    with place.strategy.scope():
        model = Gan()
        model.compile(keras.optimizers.SGD(0.01))
    history = model.fit(place.dataset(place.draws(8)), epochs=2, verbose=0)
    return {name: [float(value) for value in values] for name, values in history.history.items()}


@case("models", "an autoencoder: x without y")
def autoencoder(place: Place) -> Result:
    def build() -> Any:
        keras = place.keras

        class Auto(keras.Model):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.outer = keras.layers.Dense(3, "tanh"), keras.layers.Dense(8)

            def call(self, x: Any) -> Any:
                return self.outer(self.inner(x))

            def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **more: Any) -> Any:
                return super().compute_loss(x, x, y_pred, sample_weight, **more)

        model = Auto()
        model.compile("sgd", "mse")
        model(place.tf.zeros((1, 8)))
        return model

    return place.fit(place.kept(build), place.dataset(place.draws(8)))


WAYS: dict[str, dict[str, Any]] = {
    "run_eagerly=True": {"run_eagerly": True},
    "jit_compile=True": {"jit_compile": True},
    "steps_per_execution=2": {"steps_per_execution": 2},
    "steps_per_execution=3": {"steps_per_execution": 3},
    "auto_scale_loss=False": {"auto_scale_loss": False},
}


def _in_a_way(place: Place, options: dict[str, Any]) -> Result:
    dense = place.keras.layers.Dense

    def build() -> Any:
        optimizer = place.keras.optimizers.AdamW(0.05, weight_decay=0.5)
        return place.sequential(dense(4, "tanh"), dense(1), optimizer=optimizer, metrics=["mae"], **options)

    x = place.draws(8)
    data = place.dataset(x, place.target(x))
    return _on_rows(place, build, validation_data=data)


for name, options in WAYS.items():
    add(Case(name, "models", functools.partial(_in_a_way, options=options)))


@case("models", "train_on_batch", forms=("even",), says="^orch: warning: train_on_batch: ")
def train_on_batch(place: Place) -> Result:
    model, x = place.small(metrics=["mae"]), place.draws(8)
    logs = [model.train_on_batch(x[:BATCH], place.target(x)[:BATCH], return_dict=True) for _ in range(3)]
    return {"logs": [{name: float(value) for name, value in log.items()} for log in logs], "weights": _weights(model)}


@case("models", "test_on_batch", forms=("even",), says="^orch: warning: test_on_batch: ")
def test_on_batch(place: Place) -> Result:
    model, x = place.small(metrics=["mae"]), place.draws(8)
    return {name: float(value) for name, value in model.test_on_batch(x[:BATCH], place.target(x)[:BATCH], return_dict=True).items()}


@case("models", "predict_on_batch", forms=("even",), says="^orch: warning: predict_on_batch: ")
def predict_on_batch(place: Place) -> Result:
    found = np.asarray(place.small().predict_on_batch(place.draws(8)[:BATCH]), "float64")
    return {"predicted": found.tolist()}


def _weights(model: Any) -> list[list[float]]:
    return [np.asarray(weight, "float64").ravel().tolist() for weight in model.get_weights()]


@case("models", "evaluate: arrays, a dataset, a dataset of unknown length")
def evaluate(place: Place) -> Result:
    model, x = place.small(metrics=["mae"]), place.draws(8)
    y = place.target(x)
    found = {
        "arrays": model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True),
        "dataset": model.evaluate(place.dataset(x, y), verbose=0, return_dict=True),
        "unknown": model.evaluate(place.dataset(x, y).filter(lambda x, y: True), verbose=0, return_dict=True),
        "steps": model.evaluate(place.dataset(x, y).repeat(), steps=3, verbose=0, return_dict=True),
    }
    return {kind: {name: float(value) for name, value in logs.items()} for kind, logs in found.items()}


@case("models", "predict: arrays, a dataset, a dataset of unknown length")
def predict(place: Place) -> Result:
    model, x = place.small(), place.draws(8)
    found = {
        "arrays": model.predict(x, batch_size=BATCH, verbose=0),
        "dataset": model.predict(place.dataset(x), verbose=0),
        "unknown": model.predict(place.dataset(x).filter(lambda x: True), verbose=0),
    }
    return {name: np.asarray(value, "float64").tolist() for name, value in found.items()}


@case("models", "compiled again, with another optimizer", forms=("even", "tiny"))
def compiled_again(place: Place) -> Result:
    x = place.draws(8)
    data = place.dataset(x, place.target(x))

    def build() -> Any:
        return place.sequential(place.keras.layers.Dense(1))

    with place.strategy.scope():
        model = build()
    from ..place import give_weights

    give_weights(model)
    first = place.fit(model, data)
    with place.strategy.scope():
        model.compile(place.keras.optimizers.Adam(0.01), "mae")
    return {"first": first, "second": place.fit(model, data)}


UNSEEDED = "no seed is given: the workers begin with the same weights"


@case("models", "no seeds: the first weights", compare="workers", because=UNSEEDED, forms=("even",))
def unseeded(place: Place) -> Result:
    from .inputs import forget_seeds

    forget_seeds(place)
    with place.strategy.scope():
        model = place.sequential(place.keras.layers.Dense(4, "tanh"), place.keras.layers.Dense(1))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))
