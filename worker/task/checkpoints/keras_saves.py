"""Keras 3's `fit` continues after a restart with the step after its newest save.

Keras's own BackupAndRestore never continues within an epoch, and leaves out the order of the data, seeds, metrics, History and the other
callbacks. Here a list of callbacks of orch's own saves and restores after all callbacks have run. Keras's loop runs over what was trained
before the restart as well: its steps only take their batches, so that the data draw the same orders, and no callback sees them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import patches
from ..context import context
from ..input import same_numbers, shuffle_order
from ..patches.features import SAVES, SAVES_2
from . import input_check, keras_2_saves, saver
from .fit_session import MARK, Data, Fit, asked_of, saving_list

_running: list[SavedFit] = []
"""The calls of `fit` that run in this process and are saved, one inside the other."""


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply the section `checkpoints`, before the program starts."""
    os.environ.setdefault(same_numbers.ORDER, str(settings.get("order", "")))
    if "TF_CONFIG" not in os.environ:  # otherwise the section `input` does so
        shuffle_order.apply_soon()
    if settings.get("fit"):
        patches.after(SAVES, "keras", lambda keras: install())
        patches.after(SAVES_2, "tf_keras", lambda keras: keras_2_saves.install())


class KerasCheckpoint:
    """A callback that saves a training of `fit`: ``model.fit(..., callbacks=[worker.KerasCheckpoint(every=100)])``. `orch up --checkpoint`
    adds it itself.

    After a restart, `fit` continues with the step after the newest checkpoint: weights, optimizer, seeds, metrics, History, the state of
    the other callbacks, the epoch, and the place in the data. Give it to all workers.

    `every`: steps between two checkpoints; by default the end of each epoch. `keep`: how many stay (``checkpoints.keep``, or 3).
    `dir`: their directory, as in `worker.checkpoints`.

    The object is a callback of the Keras that TensorFlow uses: Keras 3, or Keras 2 (tf-keras). Under ParameterServerStrategy nothing is
    saved, and orch prints the reason.
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
    """Have `fit` save, once in this process."""
    from ..keras import fit as keras_fit
    from ..keras import loops

    if keras_fit.TRAINER not in sys.modules or "begin" in loops.saves_of_fit or not patches.is_on(SAVES):
        return
    shuffle_order.apply_soon()
    loops.saves_of_fit.update(begin=begin, evaluates=evaluates)
    loops.mend()


def begin(model: Any, given: dict[str, Any]) -> SavedFit | None:
    number, asked = next(Fit.numbers), asked_of(given["callbacks"])
    return SavedFit(number, model, asked) if asked is not None or context().settings.checkpoints.fit else None


class SavedFit(Fit):
    def __init__(self, number: int, model: Any, asked: Any) -> None:
        super().__init__(number, model, asked)
        self._training: Any = None
        self._validation: Any = None
        self._steps_per_epoch: int | None = None
        self._initial_epoch = 0
        self._before_steps = 0
        """The steps of the epoch with which the training continues that were trained before the restart."""
        self._has_left = False
        """Batches are left to be taken that were trained on before the restart."""
        self._is_skipped = False
        """The step that runs was trained before the restart."""
        self._is_whole = False
        """Epochs before the restart read all of their data: an epoch continues where the last one ended, or draws orders within it."""
        self._is_first = False
        self._is_everything_over = False
        """The save is of a training that a callback has stopped."""
        self._shift = 0
        """By how many steps the numbers of steps are higher than Keras's, where `steps_per_execution` has changed since the save."""

    def data(self) -> Data:
        adapter = self._training.adapter
        kind = {"TFDatasetAdapter": "dataset", "ArrayDataAdapter": "arrays"}.get(type(adapter).__name__, "")
        return Data(self._training.distributed, kind, adapter.batch_size if kind == "arrays" else None, self.model.steps_per_execution)

    def build(self) -> None:
        model = self.model
        if model._distribute_strategy is None:
            with contextlib.suppress(Exception):  # a model of the program's own; `_unbuilt` says what is missing
                model._symbolic_build(data_batch=self._training.of_first_replica())
        if not getattr(model.optimizer, "built", True) and model.trainable_variables:
            with model.distribute_strategy.scope():
                patches.theirs(model.optimizer.build, model.trainable_variables)

    # --- what Keras gets ---------------------------------------------------------------------------

    def prepare(self, given: dict[str, Any], training: Any, validation: Any) -> None:
        """Put the list of callbacks that saves into the arguments of `fit`. `training`, `validation`: its data."""
        from keras.callbacks import CallbackList

        self._training, self._validation, callbacks = training, validation, given["callbacks"]
        if not isinstance(callbacks, CallbackList):
            callbacks = CallbackList(
                callbacks,
                add_history=True,
                add_progbar=given["verbose"] != 0,
                verbose=given["verbose"],
                epochs=given["epochs"],
                steps=given["steps_per_epoch"] or training.num_batches,
                model=self.model,
            )
        self._steps_per_epoch, self._initial_epoch = given["steps_per_epoch"], given["initial_epoch"]
        self._is_whole = bool(given["steps_per_epoch"]) or training.num_batches is None
        given["callbacks"] = saving_list(CallbackList, self)
        self.begin_saves(callbacks, given["callbacks"])

    @contextlib.contextmanager
    def running(self) -> Any:
        """While this is entered, the function that runs the model's steps leaves out those before the restart."""
        _running.append(self)
        model, real = self.model, self.model.make_train_function
        vars(model)["make_train_function"] = functools.partial(self._make, real)
        try:
            yield
        finally:
            del vars(model)["make_train_function"]
            model.train_function = getattr(model.train_function, "orch_real", model.train_function)
            _running.remove(self)

    def _make(self, real: Callable[..., None], force: bool = False) -> None:
        real(force)
        made = self.model.train_function

        @patches.guarded(SAVES)
        def function(iterator: Any) -> Any:
            return self._skip(iterator.real, made, iterator) if self._has_left else patches.theirs(made, iterator)

        function.orch_real = made  # type: ignore[attr-defined]
        self.model.train_function = function

    # --- what was trained before the restart ---------------------------------------------------------

    def begin_with(self, epoch: int, batch: int, first: int) -> None:
        super().begin_with(epoch, batch, first)
        self.model._initial_epoch = None if first == self._initial_epoch else first
        self._has_left, self._before_steps = self.left_out != (0, 0), batch
        self._is_everything_over = bool(self.model.stop_training)
        self._is_whole = self._is_whole or (epoch > first and self.reads_whole_epochs())

    @property
    def is_epoch_left_out(self) -> bool:
        return self.left_out[0] > 0

    def begin_epoch(self) -> bool:
        self._is_first = True
        if self._is_everything_over:
            self.model.stop_training = True
        return not self.is_epoch_left_out

    def end_epoch(self) -> bool:
        epochs, steps = self.left_out
        self.left_out = (max(epochs - 1, 0), steps)
        return epochs == 0

    def begin_step(self, step: int) -> int | None:
        epochs, steps = self.left_out
        each = self.model.steps_per_execution
        self._is_skipped = epochs > 0 or steps >= each
        if 0 < steps < each and not self._is_skipped:
            self._shift = steps
        limit = self._steps_per_epoch or self._training.num_batches
        self._is_skipped = self._is_skipped or bool(self._shift and limit and step + self._shift >= limit)
        return None if self._is_skipped else step + self._shift

    def end_step(self, step: int) -> int | None:
        return None if self._is_skipped else step + self._shift

    def _skip(self, real: Any, function: Any, iterator: Any) -> Any:
        """Take the batches of an execution that was trained on."""
        epochs, steps = self.left_out
        each, found = self.model.steps_per_execution, patches.theirs(self.model.get_metrics_result)
        if self._is_everything_over:
            return found
        if epochs:
            if (self._is_whole or self._is_first) and not _take(real, each):
                raise StopIteration
            self._is_first = False
            return found
        if self._is_skipped and not steps:  # the end of an epoch whose steps are shifted
            return found
        count = min(steps, each)
        taken = _take(real, count)
        self.left_out = (0, steps - taken)
        if taken < count:
            input_check.tell_of_fewer(self._before_steps - self.left_out[1], self._before_steps)
            self.left_out = (0, 0)
            raise StopIteration
        self._has_left = steps > count or self._shift > 0
        return found if self._is_skipped else patches.theirs(function, iterator)

    def count_validations(self) -> int:
        return self._validations_before + (self._validation.batches.asked if self._validation is not None else 0)

    def leave_out_validations(self, count: int) -> None:
        super().leave_out_validations(count)
        if count and self._validation is not None and input_check.shuffles(self._validation.distributed):
            for _ in range(count):
                _take(iter(self._validation.distributed), 1)


def evaluates(feed: Any) -> bool:
    """True if a validation on this data runs: not at the end of an epoch before the restart."""
    return not any(fit.is_epoch_left_out and fit._validation is feed for fit in _running)


def _take(iterator: Any, count: int) -> int:
    """Take batches, and return how many there were: in a graph, so that no loop leaves the iterator (`shuffle_order._watch`)."""
    import tensorflow as tf

    for number in range(count):
        try:
            type(iterator).get_next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return number
    return count
