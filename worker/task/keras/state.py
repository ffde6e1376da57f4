"""The state that layers of Keras 3 keep next to their weights, with several workers: all workers get the same state.

In Keras 3 each worker has its own moving mean and variance of `BatchNormalization`, and its own state of every layer that assigns a
variable in `call`, from its own data, so the workers' models differ (keras/src/layers/layer.py: `add_weight` has the aggregation "none";
Keras 2 took the mean of the moving statistics). Variables that name another aggregation are made equal by TensorFlow, except
"only_first_replica", which takes the first replica of each worker.
"""

from __future__ import annotations

from typing import Any

from .. import patches
from ..patches.features import WARNINGS
from ..patches.import_hooks import print_once


def share(model: Any) -> None:
    """Set the state of all layers to the mean over all workers, or to the chief's where a mean makes no sense. All workers make this call.

    The chief's: of variables that are no floating-point numbers, and of those with the aggregation "only_first_replica".
    """
    import numpy as np
    import tensorflow as tf

    means, firsts = [], []
    for variable in of_layers(model):
        if variable.synchronization == "on_read":  # TensorFlow adds up these at each reading
            continue
        if variable.aggregation == "none" and variable.value.dtype.is_floating:
            means.append(variable)
        elif variable.aggregation in ("none", "only_first_replica") and variable.value.dtype != tf.string:
            firsts.append(variable)
    strategy = model.distribute_strategy
    workers = strategy.extended._num_workers
    factor = tf.cast(strategy.extended._is_chief, tf.int64)
    own = _of_own_layers(model)
    before = [(variable, variable.numpy()) for variable in means if id(variable) in own]
    _reduce(strategy, means, lambda parts: tf.add_n([tf.cast(part, tf.float64) for part in parts]) / (len(parts) * workers))
    _tell_of_means([variable for variable, value in before if not np.allclose(variable.numpy(), value, rtol=1e-4)])
    for kind in (tf.float64, tf.int64):
        of_kind = [each for each in firsts if each.value.dtype.is_floating == kind.is_floating]
        _reduce(strategy, of_kind, lambda parts, kind=kind: tf.cast(parts[0], kind) * tf.cast(factor, kind))


def of_layers(model: Any) -> list[Any]:
    """The variables of a model's layers that only the layers themselves change."""
    return list({id(variable): variable for layer in model._flatten_layers() for variable in layer._non_trainable_variables}.values())


def sums_of_weights(model: Any) -> dict[str, float]:
    """A number for each weight of a model in this worker, by its path: those that an optimizer sets are equal in all workers."""
    import tensorflow as tf

    found = {}
    for weight in (weight for layer in model._flatten_layers() for weight in layer._trainable_variables):
        numbers = tf.reshape(tf.cast(weight.value, tf.float64), [-1])
        found[weight.path] = float(tf.reduce_sum(numbers * tf.linspace(tf.constant(1.0, tf.float64), 2.0, tf.size(numbers))))
    return found


@patches.guarded(WARNINGS)
def tell_of_other_weights(sums: dict[str, float], of_all: list[float], workers: float) -> None:
    """Say that the workers train other weights: the program has set them. `of_all`: the sums over all workers."""
    other = [path for (path, own), each in zip(sums.items(), of_all, strict=True) if abs(own - each / workers) > 1e-6 * abs(own)]
    if other:
        print_once(
            f"the weight {other[0]!r} differs between the workers: the program has set weights or a learning rate otherwise in each. "
            "fix: set the same in all workers; in a step, let an optimizer apply the gradients"
        )


def _of_own_layers(model: Any) -> set[int]:
    """Return those of `of_layers` of which no other line tells."""
    # Keras shares no moments of rows that have a mask.
    layers = [each for each in model._flatten_layers() if type(each).__name__ != "BatchNormalization" or each.synchronized]
    return {id(variable) for layer in layers for variable in layer._non_trainable_variables}


@patches.guarded(WARNINGS)
def statistics(model: Any) -> list[tuple[Any, Any]]:
    """The moving statistics of layers that may normalize by a part of a batch, with their values: one that is called with `training=False`
    changes none."""
    layers = [layer for layer in model._flatten_layers() if is_normalized_by_parts(layer) and layer.built]
    return [(layer.moving_variance, layer.moving_variance.numpy()) for layer in layers]


def is_normalized_by_parts(layer: Any) -> bool:
    is_normalization = any(kind.__name__ == "BatchNormalization" for kind in type(layer).__mro__)
    return is_normalization and bool(layer.trainable) and not getattr(layer, "synchronized", False)


@patches.guarded(WARNINGS)
def tell_of_normalization(before: list[tuple[Any, Any]] | None = None) -> None:
    """Say that a layer normalizes by its part of a batch. `before`: the statistics before the first step."""
    if before is not None and all((variable.numpy() == value).all() for variable, value in before):
        return
    print_once(
        "BatchNormalization uses the statistics of each worker's part, so the numbers differ from one process. "
        "fix: BatchNormalization(synchronized=True)"
    )


@patches.guarded(WARNINGS)
def _tell_of_means(variables: list[Any]) -> None:
    if variables:
        others = f" (and {len(variables) - 1} others)" if len(variables) > 1 else ""
        print_once(f"the variable {variables[0].path!r}{others} differs in each worker; the end of an epoch sets their mean")


def _reduce(strategy: Any, variables: list[Any], share_of: Any) -> None:
    """Assign the sum over all workers of `share_of` the values of a variable in this worker's replicas, with one message for all."""
    import tensorflow as tf

    if not variables:
        return
    parts = [[tf.convert_to_tensor(each) for each in strategy.experimental_local_results(variable.value)] for variable in variables]
    summed = strategy.reduce(tf.distribute.ReduceOp.SUM, tf.concat([tf.reshape(share_of(each), [-1]) for each in parts], 0), axis=None)
    pieces = tf.split(summed, [variable.shape.num_elements() for variable in variables])
    for variable, piece in zip(variables, pieces, strict=True):
        variable.assign(tf.cast(tf.reshape(piece, variable.shape), variable.value.dtype))
