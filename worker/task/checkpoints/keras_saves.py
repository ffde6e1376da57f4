"""Keras 3's `fit` continues after a restart with the step after its newest save.

Keras's own BackupAndRestore never continues within an epoch, and leaves out the order of the data, seeds, metrics, History and the other
callbacks. Here the hooks of `CallbackList` save and restore after all callbacks have run, and Keras's iterator over the epochs begins in
the right epoch: it draws the orders of the epochs before, and takes the batches that were trained on without training.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from .. import import_hooks, patches
from ..input import shuffle_order
from ..patches.table import SAVES
from . import input_check, keras_2_saves, saver
from .fit_session import DATASETS, MARK, Fit, mend

_fits = 0
_now: Fit | None = None
"""The `fit` that runs in this process."""


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply the section `checkpoints`, before the program starts."""
    os.environ.setdefault(shuffle_order.ORDER, str(settings.get("order", "")))
    if "TF_CONFIG" not in os.environ:  # otherwise the section `input` does so
        shuffle_order.apply_soon()
    if settings.get("fit"):
        import_hooks.after("keras", lambda keras: install(), "fit")
        import_hooks.after("tf_keras", lambda keras: keras_2_saves.install(), "fit")


class KerasCheckpoint:
    """Saves for Keras's `fit`: ``model.fit(..., callbacks=[worker.KerasCheckpoint(every=100)])``. ``orch up --checkpoint`` adds it itself.

    After a restart, `fit` continues with the step after the newest save: weights, optimizer, seeds, metrics, History, the state of the
    other callbacks, the epoch, and the place in the data. Give it to all workers.

    `every`: steps between two saves; by default the end of each epoch. `keep`: how many saves stay (the spec's, or 3). `dir`: the directory
    of the saves, as in `worker.checkpoints`.

    The object is a callback of the Keras that TensorFlow uses: Keras 3, or Keras 2 (tf-keras). Under ParameterServerStrategy nothing is
    saved, and a line says so.
    """

    def __new__(cls, every: int | None = None, keep: int | None = None, dir: str | None = None) -> Any:
        import tensorflow as tf

        saver.keep_order()
        is_keras_2 = tf.keras.callbacks.Callback.__module__.startswith("tf_keras.")
        (keras_2_saves.install if is_keras_2 else install)()
        made: Any = type("KerasCheckpoint", (tf.keras.callbacks.Callback,), {MARK: True})()
        made.every, made.keep, made.dir = every, keep, dir
        return made


def install() -> None:
    """Change Keras's functions, once in this process."""
    from ..keras import fit as keras_fit

    if keras_fit.TRAINER not in sys.modules or not patches.is_on(SAVES):
        return
    shuffle_order.apply_soon()
    patches.replace(SAVES, "Trainer._assert_compile_called", _begin)
    patches.replace(SAVES, "Trainer._get_metrics_result_or_logs", _results)
    patches.replace(SAVES, "Trainer._should_eval", _should_validate)
    patches.extend(SAVES, "TFEpochIterator", _epochs)
    mend(SAVES, "", lambda: _now)


def _begin(real: Any, model: Any, method_name: Any = None) -> None:
    """The beginning of a `fit`. Keras calls this function first in it; `fit` itself may be bound before a callback installs this."""
    global _fits, _now
    real(model, method_name)
    if method_name == "fit":
        if _now is not None:  # it has failed, or calls this one
            _now.end()
        _fits += 1
        _now = Fit(_fits, model)


def _results(real: Any, model: Any, logs: Any) -> Any:
    """The metrics of an epoch of which all steps were before the restart."""
    if _now is not None and _now.model is model and _now.is_begun_within and logs == {}:
        return model.get_metrics_result()
    return real(model, logs)


# --- the data ---------------------------------------------------------------------------------------


def _epochs(base: Any) -> Any:
    """Keras's class `TFEpochIterator`, which continues within a training. `base`: the class so far."""

    class EpochIterator(base):  # type: ignore[misc]
        _orch_fit: Fit | None = None

        def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
            with _of_now(self, distribute_strategy, kwargs.get("shuffle")) as is_validation:
                super().__init__(distribute_strategy, *args, **kwargs)
            if is_validation and _now is not None:
                _begin_to_validate(_now, self)

        def _enumerate_iterator(self) -> Iterator[Any]:
            return _enumerate(base._enumerate_iterator, self)

    return EpochIterator


@contextlib.contextmanager
def _of_now(iterator: Any, strategy: Any, shuffle: Any) -> Iterator[bool]:
    """While this is entered, Keras makes an iterator of the `fit` that runs, or another one. Gives whether it is that of its validation."""
    from ..keras import data

    if _now is not None and _now.is_about_to_validate:
        _now.is_about_to_validate, _now.has_validated = False, True
        with shuffle_order.of_training(f"fit-{_now.number} validation"):
            yield True
    elif _now is None or _now.is_over or _now.iterator is not None:
        yield False
    else:
        _now.iterator, iterator._orch_fit = iterator, _now
        with shuffle_order.of_training(f"fit-{_now.number}"), data.arrays_in_one_order(strategy, shuffle):
            yield False


def _should_validate(real: Any, model: Any, epoch: int, validation_freq: Any) -> Any:
    """Keras asks whether an epoch ends with a validation. If so, the first time it makes an iterator over the validation data next."""
    is_due = real(model, epoch, validation_freq)
    if _now is not None and _now.model is model and not _now.is_over and not _now.has_validated:
        _now.is_about_to_validate = bool(is_due)
    return is_due


def _begin_to_validate(fit: Fit, iterator: Any) -> None:
    """Begin the validation data as often as before the restart, because each time they draw an order; and count from now on.

    Keras begins them once or several times for a validation, as its release, the strategy and the number of batches have it.
    """
    data = iterator._distributed_dataset
    if type(iterator.data_adapter).__name__ != DATASETS or not input_check.shuffles(data):
        return
    for _ in range(fit.validations):
        collections.deque(itertools.islice(data, 1), maxlen=0)

    def begun() -> Any:
        fit.validations += 1
        return data

    iterator._get_iterator = begun


def _enumerate(real: Any, self: Any) -> Iterator[Any]:
    """The steps of an epoch that are left."""
    fit: Any = self._orch_fit
    epochs, steps = (0, 0) if fit is None else fit.left_out
    if fit is not None:
        fit.left_out = (0, 0)
    is_whole = bool(self.steps_per_epoch) or self.data_adapter.num_batches is None or (epochs > 0 and fit.reads_whole_epochs())
    for _ in range(epochs):
        _pass(real, self, is_whole=is_whole)
    left, shift = steps, 0
    for begin, end, iterator in real(self):
        count = min(left, self.steps_per_execution)
        taken = _leave_out(self, iterator, count)
        left -= taken
        if taken < count:
            break
        if count == self.steps_per_execution:
            continue
        shift = shift or count  # steps_per_execution was another one, so the save is within an execution of now
        if begin + shift < (self.steps_per_epoch or self._num_batches or float("inf")):
            yield begin + shift, end + shift, iterator
    if left > 0:
        input_check.tell_of_fewer(steps - left, steps)


def _leave_out(self: Any, iterator: Any, count: int) -> int:
    """Take batches that were trained on; returns how many there were. If the data end, the epoch ends as Keras ends it."""
    taken = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the line of orch says more
        with self.catch_stop_iteration() if count else contextlib.nullcontext():
            for _ in range(count):
                next(iterator)
                taken += 1
    return taken


def _pass(real: Any, self: Any, *, is_whole: bool) -> None:
    """Begin an epoch, which draws its order, and end it as Keras does. The batches are read only where the next epoch depends on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "your input ran out of data" was said before the restart
        with self.catch_stop_iteration():
            for number, (_, _, iterator) in enumerate(real(self)):
                if is_whole or number == 0:
                    _take(iterator, self.steps_per_execution)


def _take(iterator: Any, count: int) -> None:
    """Take the batches of one execution, of which the last may have fewer."""
    for number in range(count):
        try:
            next(iterator)
        except StopIteration:
            if number == 0:
                raise
            break
