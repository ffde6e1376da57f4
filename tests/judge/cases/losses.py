"""Every loss of Keras 3, its ways to reduce, and losses of one's own. The name of a case is the code that makes the loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..case import MASKED, NO_MEAN, ONE_NUMBER, Case, Result, add, case
from ..place import Branch, Place, aligned, branches

KINDS: dict[str, tuple[int, str | None]] = {
    "numbers": (1, None),
    "positive": (2, "softplus"),
    "chances": (1, "sigmoid"),
    "signs": (1, "tanh"),
    "classes": (3, "softmax"),
    "labels": (3, "softmax"),
    "places": (4, None),
}
"""The form of the labels: the number of outputs, and the activation of the last layer."""
LOSSES = {
    # A loss that is a sum makes all parts of a batch count the same, so such a loss has a model of its own.
    "numbers": """
MeanSquaredError()
MeanAbsoluteError()
Huber()
LogCosh()
CosineSimilarity()
MeanSquaredError(reduction='mean')
MeanSquaredError(reduction='mean_with_sample_weight')
""",
    "sums of numbers": """
MeanSquaredError(reduction='sum')
""",
    "positive": """
MeanSquaredLogarithmicError()
MeanAbsolutePercentageError()
Poisson()
KLDivergence()
""",
    "chances": """
BinaryCrossentropy()
BinaryCrossentropy(label_smoothing=0.1)
BinaryFocalCrossentropy()
Dice()
Dice(axis=1)
Tversky()
Tversky(axis=1)
""",
    "signs": """
Hinge()
SquaredHinge()
""",
    "classes": """
CategoricalCrossentropy()
CategoricalCrossentropy(label_smoothing=0.1)
CategoricalFocalCrossentropy()
CategoricalHinge()
""",
    "labels": """
SparseCategoricalCrossentropy()
CategoricalGeneralizedCrossEntropy()
SparseCategoricalCrossentropy(ignore_class=1)
SparseCategoricalFocalCrossentropy()
""",
    "sums of labels": """
SparseCategoricalCrossentropy(reduction='sum')
""",
    "places": """
Circle()
""",
}


def labels(place: Place, kind: str) -> Any:
    target = place.target(place.draws(8))[:, 0]
    classes = np.digitize(target, [-0.5, 0.5])
    found = {
        "numbers": target[:, None],
        "positive": np.stack([np.abs(target) + 0.1, np.abs(target) + 0.2], axis=1),
        "chances": (target > 0)[:, None],
        "signs": np.sign(target)[:, None],
        "classes": np.eye(3)[classes],
    }.get(kind, classes)
    return aligned(found.astype("int32" if found is classes else "float32"))


def head(place: Place, kind: str) -> list[Any]:
    """The layers of a model whose outputs fit labels of this form."""
    count, activation = KINDS[kind]
    return [place.keras.layers.Dense(4, "tanh"), place.keras.layers.Dense(count, activation)]


def _evaluated(place: Place, code: str) -> Any:
    return OWN[code](place) if code in OWN else eval(code, dict(vars(place.keras.losses)))


def _train(place: Place, kind: str, codes: list[str], suffix: str = "") -> Result:
    """One model with a branch for each of these losses: a branch has weights of its own, so that no loss can hide another one."""
    made: dict[str, Branch] = {f"{code}{suffix}": (lambda: head(place, kind), functools.partial(_evaluated, place, code)) for code in codes}
    weights = aligned(np.linspace(0, 2, place.rows).astype("float32")) if suffix else None
    rate = 0.05 if "sum" not in codes[0] else 0.002  # the gradient of a sum is that of a mean times the rows
    return branches(place, made, place.draws(8), labels(place, kind), weights, rate=rate)


OWN: dict[str, Callable[[Place], Any]] = {
    "a function that gives a loss for each row": lambda place: lambda y, p: place.tf.reduce_mean(place.tf.square(y - p), axis=-1),
    "a function that gives one number": lambda place: lambda y, p: place.tf.reduce_mean(place.tf.square(y - p)),
    "a function that gives the sum over the batch": lambda place: lambda y, p: place.tf.reduce_sum(place.tf.square(y - p)),
    "a function that gives a loss for each output": lambda place: lambda y, p: place.tf.square(y - p),
}


SAYS = {
    "Dice()": NO_MEAN,
    "Tversky()": NO_MEAN,
    "SparseCategoricalCrossentropy(ignore_class=1)": MASKED,
    "Circle()": NO_MEAN,
    "Huber(reduction='mean_with_sample_weight') with sample_weight": "divides by each part's weights",
    "a function that gives one number with sample_weight": ONE_NUMBER,
}


def _add(kind: str, codes: list[str], suffix: str = "") -> None:
    rows = tuple(f"{code}{suffix}" for code in codes)
    train = functools.partial(_train, kind=kind.removeprefix("sums of "), codes=codes, suffix=suffix)
    add(Case(f"losses: {kind}" if kind.startswith("sums") else f"losses of {kind}{suffix}", "losses", train, rows=rows, says=SAYS))


for kind, text in LOSSES.items():
    _add(kind, text.strip().splitlines())
_add(
    "numbers",
    ["MeanSquaredError()", "MeanAbsoluteError()", "Huber(reduction='mean_with_sample_weight')", "a function that gives one number"],
    " with sample_weight",
)
_add("labels", ["SparseCategoricalCrossentropy()"], " with sample_weight")
add(
    Case(
        "functions as losses",
        "losses",
        functools.partial(_train, kind="numbers", codes=list(OWN)),
        rows=tuple(OWN),
        says=dict.fromkeys(OWN, f"{NO_MEAN}|{ONE_NUMBER}"),
    )
)


@case("losses", "a loss of one's own")
def own_class(place: Place) -> Result:
    class Cubes(place.keras.losses.Loss):  # type: ignore[name-defined]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return place.tf.reduce_mean(place.tf.abs(y_true - y_pred) ** 3, axis=-1)

    model = place.kept(lambda: place.sequential(*head(place, "numbers"), loss=Cubes()))
    return place.fit(model, place.dataset(place.draws(8), labels(place, "numbers")))


@case("losses", "CTC()")
def ctc(place: Place) -> Result:
    layers = place.keras.layers
    model = place.kept(lambda: place.sequential(layers.Dense(12), layers.Reshape((4, 3)), loss=place.keras.losses.CTC()))
    return place.fit(model, place.dataset(place.draws(8), aligned(np.ones((place.rows, 2), "int32") + np.arange(2, dtype="int32") % 2)))


@case("losses", "add_loss of a mean over the batch")
def added_mean(place: Place) -> Result:
    class Penalty(place.keras.layers.Layer):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            self.add_loss(place.tf.reduce_mean(place.tf.square(x)))
            return x

    layers = place.keras.layers
    model = place.kept(lambda: place.sequential(layers.Dense(4, "tanh"), Penalty(), layers.Dense(1)))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))


@case("losses", "add_loss of the weights")
def added_weights(place: Place) -> Result:
    class Penalised(place.keras.layers.Dense):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * place.tf.reduce_sum(place.tf.square(self.kernel)))
            return super().call(x)

    model = place.kept(lambda: place.sequential(Penalised(4, "tanh"), place.keras.layers.Dense(1)))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))


@case("losses", "regularizers: L1, L2, L1L2, OrthogonalRegularizer")
def regularizers(place: Place) -> Result:
    made = place.keras.regularizers
    dense = place.keras.layers.Dense

    def build() -> Any:
        return place.sequential(
            dense(4, "tanh", kernel_regularizer=made.L1(0.01), bias_regularizer=made.L2(0.01)),
            dense(4, "tanh", kernel_regularizer=made.OrthogonalRegularizer(0.01)),
            dense(1, kernel_regularizer=made.L1L2(0.01, 0.02)),
        )

    x = place.draws(8)
    return place.fit(place.kept(build), place.dataset(x, place.target(x)))


@case("losses", "activity_regularizer", says="activity_regularizer: before Keras 3.14")
def activity(place: Place) -> Result:
    dense = place.keras.layers.Dense
    model = place.kept(lambda: place.sequential(dense(4, "tanh", activity_regularizer="l2"), dense(1)))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))
