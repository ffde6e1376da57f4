"""Way (b): a trainer of orch's own for several workers, in the place of Keras's `fit`, `evaluate` and `predict`.

It is written on what Keras documents: the steps of a model (`train_step`, `test_step`, `predict_step`, and the functions that `steps` makes
of them), `CallbackList`, and the adapters of data. The loops count, and begin data, as often as those of Keras do in one process
(keras/src/trainers/epoch_iterator.py), because each beginning draws an order of a shuffle.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

from ..import_hooks import replace
from . import data, fit, steps
from .contract import _begins_with_the_first, _bound, _needs_no_build
from .fit import is_wanted


def mend(model: Any) -> None:
    steps.mend(model)
    for name, ours in (("fit", _fit), ("evaluate", _evaluate), ("predict", _predict)):
        replace(model, name, functools.partial(_or_real, ours))
    for name in ("train_on_batch", "test_on_batch"):
        replace(model, name, _on_batch)


def _or_real(ours: Callable[..., Any], real: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = model.distribute_strategy
    if is_wanted(strategy) or (ours is not _predict and _begins_with_the_first(strategy)):
        return ours(model, **_bound(real, model, args, kwargs))
    if ours is _fit:
        fit.tell_of_other_scope(strategy)
    return real(model, *args, **kwargs)


def _on_batch(real: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    if is_wanted(model.distribute_strategy):
        _needs_no_build(model)
    return real(model, *args, **kwargs)


def _fit(
    model: Any,
    *,
    x: Any,
    y: Any,
    batch_size: Any,
    epochs: int,
    verbose: Any,
    callbacks: Any,
    validation_split: float,
    validation_data: Any,
    shuffle: Any,
    class_weight: Any,
    sample_weight: Any,
    initial_epoch: int,
    steps_per_epoch: Any,
    validation_steps: Any,
    validation_batch_size: Any,
    validation_freq: Any,
) -> Any:
    import keras
    from keras.src.trainers.data_adapters import array_slicing

    _check_compiled(model, "fit")
    epochs = _at_most(epochs, "max_epochs")
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
    training = _Passes(model, x, y, sample_weight, batch_size, steps_per_epoch, shuffle=shuffle, class_weight=class_weight)
    if is_wanted(model.distribute_strategy):
        fit.tell_of_right_scope()
        if training.steps is None:
            data.tell_of_one_step_more(training.feed.distributed)
    training.build(model)
    callbacks = _callbacks(model, callbacks, verbose, training, epochs, has_history=True)
    validation: _Passes | None = None
    model.stop_training = False
    model.make_train_function()
    callbacks.on_train_begin()
    epoch_logs, logs = None, dict[str, Any]()
    for epoch in range(model._initial_epoch or initial_epoch, epochs):  # BackupAndRestore sets the attribute
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        begin, end = callbacks.on_train_batch_begin, callbacks.on_train_batch_end
        logs = training.run(model.train_function, begin, end, lambda: model.stop_training, logs)
        epoch_logs = dict(_results(model, logs))
        if validation_data is not None and _is_due(epoch + 1, validation_freq):
            if validation is None:
                val_x, val_y, val_weights = keras.utils.unpack_x_y_sample_weight(validation_data)
                validation = _Passes(model, val_x, val_y, val_weights, validation_batch_size or batch_size, validation_steps)
            epoch_logs |= {f"val_{name}": value for name, value in _evaluated(model, validation, callbacks).items()}
        callbacks.on_epoch_end(epoch, epoch_logs)
        if model.stop_training:
            break
    if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs=epoch_logs)
    return model.history


def _evaluate(
    model: Any,
    *,
    x: Any,
    y: Any,
    batch_size: Any,
    verbose: Any,
    sample_weight: Any,
    steps: Any,
    callbacks: Any,
    return_dict: bool,
    **more: Any,
) -> Any:
    if more:
        raise ValueError(f"Arguments not recognized: {more}")
    _check_compiled(model, "evaluate")
    passes = _Passes(model, x, y, sample_weight, batch_size, steps)
    logs = _evaluated(model, passes, _callbacks(model, callbacks, verbose, passes))
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def _evaluated(model: Any, passes: _Passes, callbacks: Any) -> dict[str, Any]:
    passes.build(model)
    passes.reset()
    model.make_test_function()
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    begin, end = callbacks.on_test_batch_begin, callbacks.on_test_batch_end
    logs = passes.run(model.test_function, begin, end, lambda: model.stop_evaluating)
    found = {name: _number(value) for name, value in _results(model, logs).items()}
    callbacks.on_test_end(found)
    return found


def _predict(model: Any, *, x: Any, batch_size: Any, verbose: Any, steps: Any, callbacks: Any) -> Any:
    from keras import tree
    from keras.src.backend.tensorflow.trainer import convert_to_np_if_not_ragged, potentially_ragged_concat

    x = data.in_order(model.distribute_strategy, x)
    passes = _Passes(model, x, None, None, batch_size, steps, is_read=True)
    callbacks = _callbacks(model, callbacks, verbose, passes)
    model.make_predict_function()
    model.stop_predicting = False
    found: list[Any] = []

    def step(iterator: Any) -> Any:
        batches = _up_to(iterator, model.steps_per_execution)
        found.append(model.predict_function(batches))
        return {"outputs": found[-1]}

    callbacks.on_predict_begin()
    passes.run(step, callbacks.on_predict_batch_begin, callbacks.on_predict_batch_end, lambda: model.stop_predicting)
    callbacks.on_predict_end()
    joined = tree.map_structure_up_to(found[0], lambda *of_batches: potentially_ragged_concat(list(of_batches)), *found)
    return tree.map_structure(convert_to_np_if_not_ragged, joined)


class _Passes:
    """The passes over the data of one call."""

    def __init__(self, model: Any, x: Any, y: Any, sample_weight: Any, batch_size: Any, steps: Any, **more: Any) -> None:
        from .feed import Feed

        self._given = steps = _at_most(steps, "max_steps_per_epoch")
        self._each = model.steps_per_execution
        self.feed = Feed(
            model.distribute_strategy, x, y=y, sample_weight=sample_weight, batch_size=batch_size, steps_per_epoch=steps, **more
        )
        self._batches = self.feed.num_batches
        self._iterator: Any = None
        self._seen = 0

    @property
    def steps(self) -> Any:
        """The steps of a pass; None: unknown before the end of the first one."""
        return self._given or self._batches

    def build(self, model: Any) -> None:
        """Build the model from the shapes of the data. One without `call` (its `train_step` calls its parts) cannot be built."""
        from keras import Model

        if type(model).call is not Model.call:
            with model.distribute_strategy.scope():
                model._symbolic_build(data_batch=self.feed.of_first_replica())

    def reset(self) -> None:
        """Begin the next pass with the first batch, and forget how many there were."""
        self._iterator, self._seen, self._batches = None, 0, self.feed.num_batches
        self.feed.on_epoch_end()

    def run(
        self,
        function: Callable[[Any], Any],
        begin: Callable[..., None],
        end: Callable[..., None],
        is_stopped: Callable[[], bool],
        logs: Any = None,
    ) -> Any:
        """One pass: `begin`, `function` and `end` for each execution. Returns the logs of the last one."""
        import tensorflow as tf

        logs, steps, first = {} if logs is None else logs, self.steps, 0
        self.feed.on_epoch_begin()
        if self._iterator is None or not self._given:
            self._renew()
        while steps is None or first < steps:
            if self._batches and self._seen >= self._batches:
                if self._given:
                    _warn_of_end()
                break
            begin(first)
            try:
                logs = function(self._iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if self._batches is None:
                    self._batches = self._seen + self._each
                _warn_of_end()
                self._iterator = None
                break
            self._seen += self._each
            end(first + self._each - 1, logs)
            first += self._each
            if is_stopped():
                return logs
        if self._iterator is not None and self._batches and self._seen >= self._batches:
            self._renew()
        self.feed.on_epoch_end()
        return logs

    def _renew(self) -> None:
        self._iterator, self._seen = iter(self.feed.batches), 0


def _warn_of_end() -> None:
    warnings.warn(
        "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate at least "
        "`steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when building your dataset.",
        stacklevel=3,
    )


def _callbacks(model: Any, given: Any, verbose: Any, passes: _Passes, epochs: int = 1, *, has_history: bool = False) -> Any:
    from keras.callbacks import CallbackList

    if isinstance(given, CallbackList):
        return given
    return CallbackList(
        given, add_history=has_history, add_progbar=verbose != 0, verbose=verbose, epochs=epochs, steps=passes.steps, model=model
    )


def _up_to(iterator: Any, count: int) -> list[Any]:
    """The next batches, of which there may be fewer at the end of the data; but one at least."""
    import tensorflow as tf

    found = [next(iterator)]
    with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
        while len(found) < count:
            found.append(next(iterator))
    return found


def _results(model: Any, logs: Any) -> Any:
    """The metrics of the whole pass, where the logs are those of the metrics."""
    found = model.get_metrics_result()
    return found if isinstance(logs, dict) and logs.keys() == found.keys() else logs


def _is_due(epoch: int, freq: Any) -> bool:
    if isinstance(freq, int):
        return epoch % freq == 0
    if isinstance(freq, list):
        return epoch in freq
    raise ValueError(f"Expected `validation_freq` to be a list or int. Received: validation_freq={freq} of the type {type(freq)}.")


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _check_compiled(model: Any, name: str) -> None:
    if not model.compiled:
        raise ValueError(f"You must call `compile()` before calling `{name}()`.")


def _at_most(count: Any, name: str) -> Any:
    """The limit of Keras for trials (``keras.config.max_epochs``)."""
    import keras

    limit = getattr(keras.config, name, lambda: None)()
    return limit if limit and (not count or limit < count) else count
