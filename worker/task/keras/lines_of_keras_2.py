"""Defines what `fit` of Keras 2 computes otherwise on several replicas than in one process: orch warns, and nothing is changed.

Keras 2 trains with several workers without orch, so its numbers stay as they are. It divides the loss of each part of a batch by the number
of replicas (tf_keras/src/engine/compile_utils.py, `LossesContainer.__call__`), whatever the number of the part's rows.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .. import patches
from ..patches.features import WARNINGS_2
from ..patches.import_hooks import print_once
from . import callbacks, data, fit, optimizer, state

_fits: list[bool] = []
"""For each call of `fit` with several replicas that runs in this process, one inside the other, whether it has divided its own data. What
it divides later is for its validation."""


def name_differences() -> None:
    """Have the lines printed."""
    from tf_keras.src.engine import training

    patches.replace(WARNINGS_2, "tf_keras.Model.fit", functools.partial(_fit, training.Model.train_step))
    patches.replace(WARNINGS_2, "tf_keras.single_batch_iterator", _on_batch)
    patches.replace(WARNINGS_2, "tf_keras.get_data_handler", _divide)
    patches.replace(WARNINGS_2, "tf_keras.apply_valid_mask", _apply_mask)


def _fit(step: Any, real: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """`step`: Keras's own `train_step`."""
    if model.distribute_strategy.num_replicas_in_sync < 2:
        fit.tell_of_other_scope(model.distribute_strategy)
        return real(model, *args, **kwargs)
    fit.tell_of_right_scope()
    if any(state.is_normalized_by_parts(layer) for layer in model._flatten_layers()):
        state.tell_of_normalization()
    if type(model).train_step is not step:
        print_once(f"{type(model).__name__} has a train_step of its own: {optimizer.hint(model.distribute_strategy.num_replicas_in_sync)}")
    _tell_of_logs(args[callbacks.PLACE] if len(args) > callbacks.PLACE else kwargs.get("callbacks"))
    _tell_of_state(model)
    _fits.append(False)
    try:
        found = real(model, *args, **kwargs)
    finally:
        _fits.pop()
    _tell_of_state(model)  # of layers that the first step has built
    return found


def _tell_of_state(model: Any) -> None:
    """TensorFlow makes the value of a variable equal in all replicas only if the variable has an aggregation."""
    import tensorflow as tf

    if _workers(model.distribute_strategy) < 2:
        return
    own = [layer for layer in model._flatten_layers() if not type(layer).__module__.startswith(("tf_keras.", "keras."))]
    for layer in own:
        apart = [each for each in layer._non_trainable_weights if getattr(each, "aggregation", 0) == tf.VariableAggregation.NONE]
        if apart and "assign" in _source(type(layer).call, "assign"):
            print_once(
                f"each worker assigns a value of its own to the variable {apart[0].name!r} of {type(layer).__name__}, and saves it. "
                "fix: add_weight(…, aggregation=tf.VariableAggregation.MEAN)"
            )


def _workers(strategy: Any) -> int:
    return int(getattr(strategy.extended, "_num_workers", 1))


def _source(function: Any, unknown: str) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return unknown


def _on_batch(real: Any, strategy: Any, *args: Any) -> Any:
    """Keras 2 adds up what the replicas return (`reduce_per_replica` in tf_keras/src/engine/training.py). `args`: x, y and the weights, and
    of train_on_batch the class weights; predict_on_batch, which adds up nothing, has x alone."""
    name, replicas = {3: "test_on_batch", 4: "train_on_batch"}.get(len(args)), strategy.num_replicas_in_sync
    if name and replicas > 1:
        print_once(f"{name}: Keras 2 gives the batch to each replica, so losses and metrics are {replicas} times those of one process")
    return real(strategy, *args)


def _tell_of_logs(given: Any) -> None:
    """Say what a callback for each batch gets (`reduce_per_replica` in tf_keras/src/engine/training.py)."""
    from tf_keras.src.callbacks import Callback

    own = given if isinstance(given, (list, tuple)) else [given]
    hooks = ("on_batch_end", "on_train_batch_end")
    if any(isinstance(each, Callback) and any(getattr(type(each), name) is not getattr(Callback, name) for name in hooks) for each in own):
        print_once("the logs of single batches that Keras 2 gives to callbacks are sums over the replicas; those of an epoch are right")


def _divide(real: Any, *args: Any, **kwargs: Any) -> Any:
    handler, strategy = real(*args, **kwargs), kwargs["model"].distribute_strategy
    if strategy._should_use_with_coordinator:  # parameter servers: nothing is divided
        return handler
    if (workers := _workers(strategy)) > 1:
        # An epoch has as many steps as the undivided data has batches, and each step takes a part of one batch in each worker.
        some = f"an epoch goes {workers} times over the first 1/{workers} of data"
        data.tell_of_off(handler._dataset, some if handler._inferred_steps else f"each row comes {workers} times, of data")
    if _fits:
        data.warn_of_uneven_parts(handler._dataset, handler._adapter, strategy.num_replicas_in_sync, is_trained=not _fits[-1])
        _fits[-1] = True
    return handler


def _apply_mask(real: Any, losses: Any, weights: Any, mask: Any, reduction: Any) -> Any:
    """Here a loss becomes the mean over the elements that the mask leaves. The reduction of a metric is no text."""
    is_number = isinstance(reduction, str) and tuple(getattr(losses, "shape", (None,))) == ()
    if _fits and (is_number or mask is not None):
        import tensorflow as tf

        hint = optimizer.hint(tf.distribute.get_strategy().num_replicas_in_sync)
        if mask is not None:
            print_once(f"a loss is a mean over elements that are not masked, of each part: {hint}")
        if is_number:
            print_once(
                f"a loss function that returns one number counts as the mean over its rows. fix: return a number for each row, or {hint}"
            )
    return real(losses, weights, mask, reduction)
