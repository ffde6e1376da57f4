"""Every metric of Keras 3, weighted and not. The name of a row is the code that makes the metric; metrics of like labels share a model."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..case import Case, Result, add, case
from ..place import MISSING, Place, aligned
from .losses import head, labels

METRICS = {
    "numbers": """
MeanSquaredError()
RootMeanSquaredError()
MeanAbsoluteError()
MeanAbsolutePercentageError()
CosineSimilarity()
LogCoshError()
R2Score()
ConcordanceCorrelation()
PearsonCorrelation()
Accuracy()
""",
    "positive": """
MeanSquaredLogarithmicError()
Poisson()
KLDivergence()
""",
    "chances": """
AUC()
AUC(curve='PR')
AUC(num_thresholds=5, from_logits=True)
BinaryAccuracy()
BinaryCrossentropy()
BinaryIoU()
F1Score()
FBetaScore(beta=2.0)
FalseNegatives()
FalsePositives()
TrueNegatives()
TruePositives()
Precision()
Recall()
PrecisionAtRecall(0.5)
RecallAtPrecision(0.5)
SensitivityAtSpecificity(0.5)
SpecificityAtSensitivity(0.5)
""",
    "signs": """
Hinge()
SquaredHinge()
""",
    "classes": """
CategoricalAccuracy()
CategoricalCrossentropy()
CategoricalHinge()
TopKCategoricalAccuracy(k=2)
OneHotIoU(num_classes=3, target_class_ids=[0, 1])
OneHotMeanIoU(num_classes=3)
F1Score(average='macro')
AUC(multi_label=True)
""",
    "labels": """
SparseCategoricalAccuracy()
SparseCategoricalCrossentropy()
SparseTopKCategoricalAccuracy(k=2)
MeanIoU(num_classes=3, sparse_y_pred=False)
IoU(num_classes=3, target_class_ids=[1], sparse_y_pred=False)
""",
}
USUAL = {
    "numbers": "mse",
    "positive": "mse",
    "chances": "binary_crossentropy",
    "signs": "hinge",
    "classes": "categorical_crossentropy",
    "labels": "sparse_categorical_crossentropy",
}


def _train(place: Place, kind: str, codes: list[str], weighs: bool) -> Result:
    """Train, evaluate on another number of rows, and tell what each metric has shown."""
    made = dict(vars(place.keras.metrics))
    names = {f"m{number}": code for number, code in enumerate(codes)}

    def build() -> Any:
        metrics = []
        for name, code in names.items():
            try:
                metrics.append(eval(f"{code[:-1]}, name={name!r})".replace("(,", "("), made))
            except (NameError, TypeError):  # Keras 2 does not have it, or not with these options
                continue
        shown: dict[str, Any] = {"weighted_metrics" if weighs else "metrics": metrics}
        return place.sequential(*head(place, kind), loss=USUAL[kind], **shown)

    parts = [place.draws(8), labels(place, kind)]
    if weighs:
        parts.append(aligned(np.linspace(0, 2, place.rows).astype("float32")))
    found = place.fit(place.kept(build), place.dataset(*parts), validation_data=place.dataset(*(part[:49] for part in parts)))
    of_rows = {f"{code} in {'weighted_metrics' if weighs else 'metrics'}": name for name, code in names.items()}
    return {row: {key: found[key] for key in (name, f"val_{name}")} if name in found else MISSING for row, name in of_rows.items()}


for kind, text in METRICS.items():
    codes = text.strip().splitlines()
    for weighs in (False, True):
        if weighs:
            codes = [code for code in codes if code != "Accuracy()"]
        suffix = " in weighted_metrics" if weighs else ""
        rows = tuple(f"{code} in {'weighted_metrics' if weighs else 'metrics'}" for code in codes)
        add(
            Case(
                f"metrics of {kind}{suffix}",
                "metrics",
                functools.partial(_train, kind=kind, codes=codes, weighs=weighs),
                rows=rows,
                forms=("even", "uneven", "tiny") if not weighs else ("even", "tiny"),
            )
        )


@case("metrics", "metrics made outside the scope")
def outside(place: Place) -> Result:
    made = [place.keras.metrics.AUC(name="auc"), place.keras.metrics.BinaryAccuracy(name="accuracy")]
    model = place.kept(lambda: place.sequential(*head(place, "chances"), loss="binary_crossentropy", metrics=made))
    parts = (place.draws(8), labels(place, "chances"))
    return place.fit(model, place.dataset(*parts), validation_data=place.dataset(*(part[:49] for part in parts)))


@case("metrics", "a metric of one's own")
def own_class(place: Place) -> Result:
    class Largest(place.keras.metrics.Metric):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(name="share")
            self.above = self.add_weight(name="above", initializer="zeros")
            self.all = self.add_weight(name="all", initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.above.assign_add(place.tf.reduce_sum(place.tf.cast(y_pred > y_true, "float32")))
            self.all.assign_add(place.tf.reduce_sum(place.tf.ones_like(y_pred)))

        def result(self) -> Any:
            return self.above / self.all

    model = place.kept(lambda: place.sequential(*head(place, "numbers"), metrics=[Largest()]))
    parts = (place.draws(8), labels(place, "numbers"))
    return place.fit(model, place.dataset(*parts), validation_data=place.dataset(*(part[:49] for part in parts)))


@case("metrics", "a function that gives one number, as a metric")
def function(place: Place) -> Result:
    def apart(y_true: Any, y_pred: Any) -> Any:
        return place.tf.reduce_mean(place.tf.abs(y_true - y_pred))

    model = place.kept(lambda: place.sequential(*head(place, "numbers"), metrics=[apart]))
    parts = (place.draws(8), labels(place, "numbers"))
    return place.fit(model, place.dataset(*parts))


@case(
    "metrics",
    "metrics after each batch, in a callback",
    says="is not a mean over rows|the logs of single batches that Keras 2 gives",
)
def of_batches(place: Place) -> Result:
    seen: list[dict[str, float]] = []

    class Watch(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append({name: float(value) for name, value in logs.items()})

    made = place.keras.metrics
    model = place.kept(
        lambda: place.sequential(
            *head(place, "chances"), loss="binary_crossentropy", metrics=[made.AUC(name="auc"), made.RootMeanSquaredError(name="root")]
        )
    )
    parts = (place.draws(8), labels(place, "chances"))
    return {**place.fit(model, place.dataset(*parts), callbacks=[Watch()]), "batches": seen}
