"""Where a case runs: the strategy, Keras, the data, and what every case does with them. It is made in the tasks of a world."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MISSING = {"is_missing": True}
"""The result of a row that this Keras does not have."""
BATCH = 24
"""The global batch: 2 and 3 replicas can divide it."""
ROWS = {"even": 96, "uneven": 101, "tiny": 97}
"""The forms of data: whole batches; a last batch of 5 rows, whose parts differ in size; a last batch of 1 row, fewer than replicas."""
MOST_ROWS = max(ROWS.values())


class Place:
    """One form of data in one world. A case trains on the same global batches from the same first weights, wherever it runs."""

    def __init__(self, strategy: Any, shared: Path, kept: dict[str, Any], data: str) -> None:
        import tensorflow as tf

        self.strategy, self.shared, self.tf, self.data = strategy, shared, tf, data
        self.is_keras_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
        self.keras: Any = importlib.import_module("tf_keras" if self.is_keras_2 else "keras")
        self.task = os.environ.get("ORCH_TASK", "worker-0")
        self.is_alone = strategy.num_replicas_in_sync == 1
        self.has_peers = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.rows = ROWS[data]
        self._kept = kept
        self.shown: list[Any] = kept.setdefault("shown", [])
        """Metrics of the kept model."""

    # --- data ------------------------------------------------------------------------------------

    def draws(self, *shape: int, seed: int = 0) -> Any:
        """Numbers of a normal distribution for each row, at an address at which TensorFlow takes NumPy's memory without a copy."""
        return aligned(np.random.default_rng(seed).normal(size=(MOST_ROWS, *shape)).astype("float32")[: self.rows])

    def ids(self) -> Any:
        """Rows of which the first number is the number of the row, divided by 128."""
        found = self.draws(8)
        found[:, 0] = np.arange(self.rows) / 128
        return found

    def target(self, x: Any) -> Any:
        """A number for each row that a model can learn."""
        return aligned(np.tanh(x.reshape(len(x), -1).sum(axis=1, keepdims=True)).astype("float32"))

    def dataset(self, *parts: Any, size: int = BATCH) -> Any:
        return self.tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(size)

    def directory(self, name: str) -> Path:
        """A directory that all tasks see, of this form of data alone."""
        found = self.shared / f"{name}-{self.data}"
        found.mkdir(parents=True, exist_ok=True)
        return found

    # --- models ----------------------------------------------------------------------------------

    def kept(self, build: Callable[[], Any]) -> Any:
        """The model that `build` makes in the scope, with its first variables. One trace serves the forms of data of a case, whose order
        changes nothing.
        """
        self.keras.utils.set_random_seed(1)
        if "model" in self._kept:
            for variable, value in self._kept["first"]:
                variable.assign(value)
            self._kept["model"]._initial_epoch = None  # BackupAndRestore leaves the epoch here
            return self._kept["model"]
        with self.strategy.scope():
            model = build()
        give_weights(model)
        if not self.is_keras_2:  # Keras 2 makes the variables of its optimizer while it trains
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None:
                with self.strategy.scope():
                    optimizer.build(model.trainable_variables)
            variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
            self._kept["model"] = model
            self._kept["first"] = [(variable, np.array(variable)) for variable in variables]
        return model

    def sequential(self, *layers: Any, shape: tuple[int | None, ...] = (8,), **options: Any) -> Any:
        """A compiled model of these layers, for use in `kept`."""
        model = self.keras.Sequential([self.keras.layers.Input(shape), *layers])
        model.compile(**{"optimizer": self.keras.optimizers.SGD(0.05), "loss": "mse", **options})
        return model

    def small(self, **options: Any) -> Any:
        """The model that most cases train, kept."""
        dense = self.keras.layers.Dense
        return self.kept(lambda: self.sequential(dense(4, "tanh"), dense(1), **options))

    def fit(self, model: Any, x: Any, y: Any = None, *, epochs: int = 2, **options: Any) -> dict[str, Any]:
        """Train, and tell what can be compared."""
        history = model.fit(x, y, epochs=epochs, verbose=0, **options)
        return {**floats(history.history), **state(model)}

    def meet(self) -> None:
        """Wait until all tasks are here."""
        if self.has_peers:
            from orchestrator.testing import barrier

            barrier()


def aligned(values: Any) -> Any:
    """A copy that begins at a multiple of 64 bytes."""
    room = np.empty(values.nbytes + 64, "uint8")
    begin = -room.ctypes.data % 64
    found = room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


def give_weights(model: Any) -> None:
    """First weights that depend on nothing but their order and shapes."""
    for number, variable in enumerate(model.trainable_variables):
        values = np.random.default_rng(number).normal(size=tuple(variable.shape)) * 0.5
        variable.assign(values.astype("float32"))


def floats(logs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(values, "float64").tolist() for name, values in logs.items()}


def state(model: Any) -> dict[str, Any]:
    """The weights, and the number of steps that the optimizer has counted."""
    found: dict[str, Any] = {"weights": [np.asarray(weight, "float64").ravel().tolist() for weight in model.get_weights()]}
    optimizer = getattr(model, "optimizer", None)
    return {**found, "iterations": int(optimizer.iterations.numpy())} if optimizer is not None else found


Branch = tuple[Callable[[], list[Any]], Callable[[], Any]]


def branches(
    place: Place,
    made: dict[str, Branch],
    x: Any,
    y: Any,
    weights: Any = None,
    *,
    dtype: str | None = None,
    predicts: bool = False,
    rate: float = 0.05,
) -> dict[str, Any]:
    """Train one model that has a branch with weights of its own for each row: what each branch gives. One trace serves many rows."""
    keras, names = place.keras, {row: f"b{number}" for number, row in enumerate(made)}

    def build() -> Any:
        inputs = keras.Input(x.shape[1:], dtype=dtype)
        outputs, losses = {}, {}
        for row, (layers, loss) in made.items():
            try:
                chain, of_branch = layers(), loss()
            except (NameError, TypeError, AttributeError, ValueError):  # this Keras does not have it
                continue
            hidden = inputs
            for number, layer in enumerate(chain):
                layer._name = f"{names[row]}_{number}"
                hidden = layer(hidden)
            outputs[names[row]] = keras.layers.Activation("linear", name=names[row])(hidden)
            losses[names[row]] = of_branch
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(rate), losses, jit_compile=False)
        return model

    model = place.kept(build)
    present = [name for name in names.values() if name in model.output_names]
    of_branches = dict.fromkeys(present, y)
    parts = (x, of_branches) if weights is None else (x, of_branches, dict.fromkeys(present, weights))
    history = model.fit(place.dataset(*parts), epochs=2, verbose=0).history
    predicted = model.predict(place.dataset(x[:49]), verbose=0) if predicts else {}
    found: dict[str, Any] = {}
    for row, name in names.items():
        if name not in present:
            found[row] = MISSING
            continue
        own = [layer for layer in model.layers if layer.name.startswith(f"{name}_")]
        shown = history[f"{name}_loss"] if len(present) > 1 else history["loss"]
        found[row] = {
            "loss": [float(value) for value in shown],
            "weights": [np.asarray(weight, "float64").ravel().tolist() for layer in own for weight in layer.get_weights()],
            "predicted": np.asarray(predicted[name], "float64").tolist() if predicts else [],
        }
    return found
