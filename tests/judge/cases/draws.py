"""The random half: a training that is drawn by a number. `case_of(17)` is always the same training.

Draws that follow each other train one model (`TOGETHER` of them) on data, and in ways, of their own: most of the time of a draw goes into
the tracing of a model.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np

from worker.values.fast_dataclass import dataclass

from ..case import MASKED, ONE_NUMBER, Case, Result
from ..place import Place, aligned
from .inputs import sliced

OPTIMIZERS = ("SGD", "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adamax", "Nadam", "Ftrl", "Adadelta")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"clipnorm": 0.1},
    {"global_clipnorm": 0.1},
    {"clipvalue": 0.02},
    {"weight_decay": 0.1},
    {"use_ema": True, "ema_momentum": 0.5},
    {"loss_scale_factor": 4.0},
)
FAMILIES = ("dense", "dense", "subclass", "convolution", "pooling", "recurrent", "words", "two outputs")
LOSSES = ("mse", "mae", "huber", "log_cosh", "one number", "each row")
FORMS = (
    "arrays",
    "arrays, shuffled",
    "dataset",
    "dataset",
    "dataset, shuffled",
    "unknown length",
    "generator",
    "PyDataset",
    "from_generator",
)
POLICIES = ("AUTO", "AUTO", "DATA", "OFF")
SHAPES: dict[str, tuple[int, ...]] = {"convolution": (6, 6, 2), "pooling": (6, 6, 2), "recurrent": (5, 3)}


TOGETHER = 6
"""How many draws have one model."""
WORKERS = ("two", "three")
"""The worlds of several workers, in turns: one for the draws of each model."""


@dataclass(frozen=True)
class Drawn:
    family: str
    optimizer: str
    options: dict[str, Any]
    loss: str
    metrics: tuple[str, ...]
    steps_per_execution: int


@dataclass(frozen=True)
class Draw:
    model: Drawn
    form: str
    policy: str
    rows: int
    batch: int
    epochs: int
    steps_per_epoch: int | None
    validation: int
    weighs: bool
    callback: str


def model_of(number: int) -> Drawn:
    chance = random.Random(f"model {number}")
    family, options = chance.choice(FAMILIES), chance.choice(OPTIONS)
    while family == "words" and "loss_scale_factor" in options:  # Keras in one process fails with both (it divides IndexedSlices)
        options = chance.choice(OPTIONS)
    return Drawn(
        family=family,
        optimizer=chance.choice(OPTIMIZERS),
        options=options,
        loss=chance.choice(LOSSES),
        metrics=tuple(chance.sample(("mae", "RootMeanSquaredError", "R2Score", "MeanSquaredError"), chance.randint(0, 2))),
        steps_per_execution=chance.choice((1, 1, 1, 2, 3, 4)),
    )


def draw(number: int) -> Draw:
    chance = random.Random(number)
    batch = chance.choice((4, 6, 8, 12, 16, 24))
    whole = chance.randint(1, 5) * batch
    form = chance.choice(FORMS)
    return Draw(
        model=model_of(number // TOGETHER),
        form=form,
        policy=chance.choice(POLICIES) if "dataset" in form or form == "unknown length" else "AUTO",
        # Half of the draws have whole batches; the others have a last batch of any size.
        rows=whole if chance.random() < 0.5 else whole + chance.randint(1, batch - 1),
        batch=batch,
        epochs=chance.randint(1, 3),
        steps_per_epoch=chance.choice((None, None, None, 2)) if form.startswith("dataset") else None,
        validation=chance.choice((0, 0, batch, batch + 1, 2 * batch + 3)),
        weighs=chance.random() < 0.2 and "generator" not in form and form != "PyDataset",
        callback=chance.choice(("", "", "EarlyStopping", "ReduceLROnPlateau")),
    )


def world_of(number: int) -> str:
    """The world of several workers in which this draw is judged."""
    return WORKERS[number // TOGETHER % len(WORKERS)]


@functools.cache
def case_of(number: int) -> Case:
    drawn = draw(number)
    return Case(
        f"draw {number}",
        "draws",
        functools.partial(_run, drawn=drawn),
        forms=("even",),
        says=f"{ONE_NUMBER}|{MASKED}" + ("|under the policy OFF" if drawn.policy == "OFF" else ""),
        model=f"model {number // TOGETHER}",
    )


def _data(drawn: Draw, rows: int) -> tuple[Any, ...]:
    numbers = np.random.default_rng(0).normal(size=(rows, *SHAPES.get(drawn.model.family, (8,)))).astype("float32")
    target = np.tanh(numbers.reshape(rows, -1).sum(axis=1, keepdims=True)).astype("float32")
    x = aligned((np.abs(numbers) * 5).astype("int32") % 12) if drawn.model.family == "words" else aligned(numbers)
    found: tuple[Any, ...] = (x, aligned(target))
    return (*found, aligned(np.linspace(0.5, 1.5, rows).astype("float32"))) if drawn.weighs else found


def _layers(place: Place, family: str) -> list[Any]:
    made = place.keras.layers
    own = {
        "convolution": [made.Conv2D(2, 3, activation="tanh"), made.Flatten()],
        "pooling": [made.AveragePooling2D(2), made.MaxPooling2D(2), made.Flatten()],
        "recurrent": [made.GRU(3)],
        "words": [made.Embedding(12, 3), made.GlobalAveragePooling1D()],
    }
    return own.get(family, [made.Dense(4, "tanh")])


def _model(place: Place, drawn: Drawn) -> Any:
    keras, tf = place.keras, place.tf
    own = {
        "one number": lambda y, p: tf.reduce_mean(tf.square(y - p)),
        "each row": lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1),
    }
    loss = own.get(drawn.loss, drawn.loss)
    optimizer = getattr(keras.optimizers, drawn.optimizer)(0.02, **drawn.options)
    metrics = [getattr(keras.metrics, name)() if name[0].isupper() else name for name in drawn.metrics]
    inputs = keras.Input(SHAPES.get(drawn.family, (8,)), dtype="int32" if drawn.family == "words" else None)
    layers = _layers(place, drawn.family)
    if drawn.family == "subclass":

        class Own(keras.Model):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.hidden, self.last = layers[0], keras.layers.Dense(1)

            def call(self, x: Any) -> Any:
                return self.last(self.hidden(x))

        model = Own()
        model(tf.zeros((1, 8)))
    else:
        hidden = inputs
        for layer in layers:
            hidden = layer(hidden)
        # With names of Keras's own, the logs would have numbers that depend on the draws before.
        outputs = keras.layers.Dense(1, name="first")(hidden)
        model = keras.Model(inputs, outputs if drawn.family != "two outputs" else [outputs, keras.layers.Dense(1, name="second")(hidden)])
    if drawn.family == "two outputs":
        model.compile(optimizer, [loss, "mae"], steps_per_execution=drawn.steps_per_execution)
    else:
        model.compile(optimizer, loss, metrics=metrics, steps_per_execution=drawn.steps_per_execution)
    return model


def _fed(place: Place, drawn: Draw, parts: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of `fit` for this form of data."""
    tf, form, batch = place.tf, drawn.form, drawn.batch
    if form.startswith("arrays"):
        weights = {"sample_weight": parts[2]} if drawn.weighs else {}
        y = (parts[1], parts[1]) if drawn.model.family == "two outputs" else parts[1]
        weights = {"sample_weight": [parts[2], parts[2]]} if weights and drawn.model.family == "two outputs" else weights
        return {"x": parts[0], "y": list(y) if isinstance(y, tuple) else y, "batch_size": batch, "shuffle": "shuffled" in form, **weights}
    if drawn.model.family == "two outputs":
        parts = (parts[0], (parts[1], parts[1]), *(((part, part)) for part in parts[2:]))

    def with_length(data: Any) -> Any:
        """Keras counts a step without data at the end of data of unknown length, in one process; with several workers orch does not."""
        return data.apply(tf.data.experimental.assert_cardinality(-(-len(parts[0]) // batch))) if place.is_alone else data

    if form in ("generator", "PyDataset", "from_generator"):
        fed = sliced(place, form, parts, batch)
        return {**fed, "x": with_length(fed["x"])} if form == "from_generator" else fed
    data = tf.data.Dataset.from_tensor_slices(parts)
    if "shuffled" in form:
        data = data.shuffle(len(parts[0]), seed=3)
    data = data.batch(batch)
    if form == "unknown length":
        data = with_length(data.filter(lambda *parts: True))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[drawn.policy]
    data = data.with_options(options)
    return {"x": data.repeat(), "steps_per_epoch": drawn.steps_per_epoch} if drawn.steps_per_epoch else {"x": data}


def _run(place: Place, drawn: Draw) -> Result:
    parts = _data(drawn, drawn.rows)
    before = [part.copy() for part in parts]
    model = place.kept(lambda: _model(place, drawn.model))
    callbacks = {
        "EarlyStopping": lambda: place.keras.callbacks.EarlyStopping("loss", patience=0, min_delta=0.05),
        "ReduceLROnPlateau": lambda: place.keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.05),
    }
    options: dict[str, Any] = {"callbacks": [callbacks[drawn.callback]()]} if drawn.callback else {}
    if drawn.validation:
        x, y, *_ = _data(drawn, drawn.validation)
        if drawn.model.family == "two outputs":
            y = (y, y)
        options["validation_data"] = place.tf.data.Dataset.from_tensor_slices((x, y)).batch(drawn.batch)
    fed = _fed(place, drawn, parts)
    found = place.fit(model, fed.pop("x"), epochs=drawn.epochs, **fed, **options)
    return {**found, "the arrays are unchanged": all(bool((part == old).all()) for part, old in zip(parts, before, strict=True))}
