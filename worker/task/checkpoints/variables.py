"""The variables of a training: which there are, how a worker reads its own values, and how it sets them.

`tf.train.Checkpoint` leaves out what a training needs to continue exactly: the seeds of dropout, and the metrics of functional models. So
the variables of Keras's objects come from Keras itself. And TensorFlow's checkpoints read a variable of which each replica has its own
part by a collective, for which all workers must be there. Here each worker reads its own part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...formats.tensor_file import Tensor
from ...values.words import few
from ..patches import refusal

_DTYPES = {f"{kind}int{bits}".removeprefix("s"): f"{kind.upper().replace('S', 'I')}{bits}" for kind in "su" for bits in (8, 16, 32, 64)} | {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "bool": "BOOL",
    "complex64": "C64",
}
"""TensorFlow's types, and those of safetensors."""


@dataclasses.dataclass(frozen=True)
class NamedVariable:
    name: str
    variable: Any
    """A `tf.Variable`, or one of a strategy, which has a component in each replica."""
    is_own: bool
    """Each worker has values of its own: seeds, statistics of BatchNormalization, metrics. Otherwise all workers have the same."""

    def replicas(self) -> list[Any]:
        return list(getattr(self.variable, "values", ())) or [self.variable]

    def components(self) -> list[Any]:
        """The variables of this worker that a save has: one, or one in each of its replicas where these have values of their own."""
        return self.replicas() if self.is_own else self.replicas()[:1]

    def names(self) -> list[str]:
        count = len(self.components())
        return [self.name] if count == 1 else [f"{self.name}@{index}" for index in range(count)]


def collect(objects: Mapping[str, Any]) -> list[NamedVariable]:
    """The variables of some objects, each once, with names that begin with the keys. Raises ValueError for state that cannot be saved."""
    found: dict[int, NamedVariable] = {}
    names: set[str] = set()
    for key, one in objects.items():
        for path, variable, is_own in _variables(key, one, set()):
            variable = getattr(variable, "_value", variable)  # Keras's variables have a TensorFlow variable inside
            if id(variable) in found:
                continue
            if code_of(variable) is None:
                raise refusal(ValueError(f"worker.checkpoints: {path} has the type {variable.dtype.name}, which is not saved"))
            name, again = path, 1
            while name in names:
                again += 1
                name = f"{path}#{again}"
            names.add(name)
            found[id(variable)] = NamedVariable(name, variable, is_own)
    return list(found.values())


def _variables(key: str, one: Any, seen: set[int]) -> Iterator[tuple[str, Any, bool]]:
    """(path, variable, has each worker its own values) of an object."""
    import tensorflow as tf

    if one is None or id(one) in seen:
        return
    seen.add(id(one))
    if isinstance(one, tf.Variable) or hasattr(one, "_value"):
        yield key, one, _is_each(one)
    elif hasattr(one, "_flatten_layers"):  # a layer or a model of Keras
        yield from _of_layer(key, one)
    elif hasattr(one, "apply_gradients") and hasattr(one, "variables"):  # an optimizer
        variables = [*(one.variables() if callable(one.variables) else one.variables), *_of_keras_2(one)]
        yield from ((f"{key}/{_path(variable)}", variable, False) for variable in variables)
    elif type(one).__name__ == "SeedGenerator" and hasattr(one, "state"):
        yield f"{key}/state", one.state, True
    elif hasattr(one, "update_state") and hasattr(one, "variables"):  # a metric of Keras
        yield from ((f"{key}/{_path(variable)}", variable, True) for variable in one.variables)
    elif isinstance(one, tf.random.Generator):
        yield f"{key}/state", one.state, True
    elif isinstance(one, (list, tuple)):
        for index, child in enumerate(one):
            yield from _variables(f"{key}/{index}", child, seen)
    elif isinstance(one, Mapping):
        for name, child in one.items():
            yield from _variables(f"{key}/{name}", child, seen)
    else:
        yield from _of_trackable(key, one, seen)


def _of_layer(key: str, layer: Any) -> Iterator[tuple[str, Any, bool]]:
    layers = list(layer._flatten_layers())
    own = {
        id(variable)
        for each in layers
        for variable in getattr(each, "_non_trainable_variables", getattr(each, "_non_trainable_weights", ()))
    }
    own |= {id(variable) for variable in layer.variables if _has_parts(variable)}  # such as Keras 2's metrics in a model of one's own
    plain = {id(variable) for variable in getattr(layer, "weights", ())} - own
    metrics = getattr(layer, "metrics_variables", None)
    if metrics is None:  # Keras 2, where a model's own `metrics` may leave out those of `compile`, which are updated all the same
        compiled = (getattr(layer, name, None) for name in ("compiled_loss", "compiled_metrics"))
        found = [*getattr(layer, "metrics", ()), *(metric for each in compiled if each is not None for metric in each.metrics)]
        metrics = [variable for metric in found for variable in metric.variables]
    for variable in [*layer.variables, *metrics]:
        yield f"{key}/{_path(variable)}", variable, id(variable) not in plain
    # What Keras counts among no variables: the states of `stateful` layers, and in Keras 3 each `tf.Variable` that is an attribute.
    for each in layers:
        for state in _flat(each.states) if getattr(each, "stateful", False) and hasattr(each, "states") else []:
            yield f"{key}/{_path(state)}", state, True
        for raw in _raw(each) if hasattr(each, "_non_trainable_variables") else []:
            yield f"{key}/{_path(raw)}", raw, _is_each(raw)


def _is_each(variable: Any) -> bool:
    """True if each worker has a value of its own: each replica has a part, or nothing brings together what the replicas assign."""
    import tensorflow as tf

    value = getattr(variable, "_value", variable)
    return _has_parts(variable) or (value.aggregation == tf.VariableAggregation.NONE and not variable.trainable)


def _has_parts(variable: Any) -> bool:
    import tensorflow as tf

    return bool(getattr(variable, "_value", variable).synchronization == tf.VariableSynchronization.ON_READ)


def _raw(layer: Any) -> list[Any]:
    """Return those that can be saved: the training must not end because of one that no one has asked to save."""
    import tensorflow as tf

    found = [value for value in vars(layer).values() if isinstance(value, tf.Variable)]
    return [value for value in found if code_of(value) is not None and value.shape.is_fully_defined()]


def _flat(states: Any) -> list[Any]:
    if isinstance(states, (list, tuple)):
        return [variable for each in states for variable in _flat(each)]
    return [states] if hasattr(states, "assign") else []


def _of_trackable(key: str, one: Any, seen: set[int]) -> Iterator[tuple[str, Any, bool]]:
    """The variables of a `tf.train.Checkpoint`, a `tf.Module` or another object that TensorFlow tracks."""
    import tensorflow as tf
    from tensorflow.python.trackable.base import Trackable

    if not isinstance(one, Trackable):
        raise refusal(
            ValueError(
                f"worker.checkpoints: {key} is of type {type(one).__name__}. "
                "fix: give variables, models, layers, optimizers, metrics, a tf.Module or a tf.train.Checkpoint of these"
            )
        )
    if type(one)._serialize_to_tensors is not Trackable._serialize_to_tensors:
        raise refusal(
            ValueError(
                f"worker.checkpoints: {key} is of type {type(one).__name__}, whose state is not saved"
                + (
                    "; an iterator needs no checkpoint: saver.batches begins where the training was"
                    if "Iterator" in type(one).__name__
                    else ""
                )
            )
        )
    for name, child in tf.train.TrackableView.children(one).items():
        yield from _variables(key and f"{key}/{name}", child, seen) if key else _variables(name, child, seen)


def _of_keras_2(optimizer: Any) -> Iterator[Any]:
    """Return what an optimizer of Keras 2 does not count among its variables: the learning rate, other numbers of a legacy optimizer, and
    what mixed precision scales the loss by."""
    inner = getattr(optimizer, "inner_optimizer", None)
    for one in (optimizer, *([] if inner is None else [inner])):
        numbers = [getattr(one, "_learning_rate", None), *vars(one).get("_hyper", {}).values()]
        yield from (number for number in numbers if hasattr(number, "assign"))
    yield from getattr(getattr(optimizer, "_loss_scale", None), "_weights", {}).values()


def _path(variable: Any) -> str:
    """The name of a variable without the ``:0`` of TensorFlow."""
    return str(getattr(variable, "path", None) or variable.name).partition(":")[0]


def is_known(dtype: str) -> bool:
    """True if a save can have this type of NumPy."""
    return dtype in _DTYPES


def code_of(variable: Any) -> str | None:
    """The word of safetensors for the type of a variable; None: there is none."""
    return _DTYPES.get(variable.dtype.base_dtype.name)


# --- values --------------------------------------------------------------------------------------


def read(named: list[NamedVariable], *, own: bool) -> dict[str, Tensor]:
    """Copies of the values of this worker: its own, or those that all workers have alike."""
    found = {}
    for each in named:
        if each.is_own == own:
            for name, part in zip(each.names(), each.components(), strict=True):
                found[name] = tensor(part.numpy(), code_of(part) or "")
    return found


def tensor(array: Any, dtype: str | None = None) -> Tensor:
    import numpy as np

    array = np.asarray(array)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Tensor(dtype or _DTYPES[array.dtype.name], array.shape, array.tobytes())


def array(found: Tensor) -> Any:
    import numpy as np
    import tensorflow as tf

    name = next(name for name, code in _DTYPES.items() if code == found.dtype)
    return np.frombuffer(found.data, tf.dtypes.as_dtype(name).as_numpy_dtype).reshape(found.shape)


def assign(named: list[NamedVariable], found: Mapping[str, Tensor]) -> None:
    """Set the variables of this worker. `compare` has found that all values are there."""
    for each in named:
        parts = each.components()
        for name, part in zip(each.names(), parts, strict=True):
            value = array(found[name])
            for variable in [part] if each.is_own else each.replicas():
                variable.assign(value)


def compare(named: list[NamedVariable], told: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Raises ValueError if a save is that of another model: with the first variable that differs, and both shapes."""
    mine = {name: part for each in named for name, part in zip(each.names(), each.components(), strict=True)}
    missing, added = [name for name in mine if name not in told], [name for name in told if name not in mine]
    other = []
    for name, part in mine.items():
        kind, shape = code_of(part), list(part.shape)
        if name in told and (told[name]["dtype"], told[name]["shape"]) != (kind, shape):
            other.append(f"{name} has the shape {told[name]['shape']} ({told[name]['dtype']}) there and {shape} ({kind}) here")
    problems = [*other[:1]]
    if missing:
        problems.append(f"{few(missing)} of this program {'is' if len(missing) == 1 else 'are'} not in the checkpoint")
    if added:
        problems.append(f"{few(added)} of the checkpoint {'is' if len(added) == 1 else 'are'} not in this program")
    if problems:
        raise refusal(
            ValueError(
                f"{where} is the checkpoint of another model: {'; '.join(problems)}. "
                "fix: start the program that has made it, or begin again in a new run"
            )
        )


def bytes_of(named: list[NamedVariable]) -> int:
    return sum(part.dtype.size * math.prod(part.shape) for each in named for part in each.components())
