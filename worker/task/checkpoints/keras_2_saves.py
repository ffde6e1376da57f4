"""The `fit` of Keras 2 (tf-keras) continues after a restart with the step after its newest save, as that of Keras 3 does (`keras_saves`).

Keras 2 counts epochs and steps in its `DataHandler`, which leaves out what was trained before the restart; and it makes its metrics and the
optimizer's variables within the first step.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from .. import patches
from ..context import context
from ..input import shuffle_order
from ..patches.features import SAVES_2
from ..patches.import_hooks import print_once
from .fit_session import Data, Fit, asked_of, saving_list

_running: list[Fit2] = []
"""The calls of `fit` that run in this process and are saved, one inside the other."""


class Fit2(Fit):
    """One call of Keras 2's `fit`. `given`: its arguments."""

    def __init__(self, number: int, model: Any, asked: Any, given: dict[str, Any]) -> None:
        from tf_keras.callbacks import CallbackList

        super().__init__(number, model, asked)
        self.handler: Any = None
        """Keras's `DataHandler`, once it is made."""
        self._given = given
        self._saving = saving_list(CallbackList, self)

    def arguments(self) -> dict[str, Any]:
        """Return those that Keras gets."""
        return {**self._given, "callbacks": self._saving}

    def take(self, handler: Any) -> None:
        """Make the list of callbacks, as Keras does once the data are known: their number of steps is a part of it."""
        from tf_keras.callbacks import CallbackList
        from tf_keras.src.engine import training

        self.handler, callbacks = handler, self._given["callbacks"]
        if not isinstance(callbacks, CallbackList):
            verbose = training._get_verbosity(self._given["verbose"], self.model.distribute_strategy)
            callbacks = CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0,
                model=self.model,
                verbose=verbose,
                epochs=self._given["epochs"],
                steps=handler.inferred_steps,
            )
        self.begin_saves(callbacks, self._saving)

    def data(self) -> Data:
        handler = self.handler
        kind = {"DatasetAdapter": "dataset", "TensorLikeDataAdapter": "arrays"}.get(type(handler._adapter).__name__, "")
        size = handler._adapter.batch_size() if kind == "arrays" else None
        return Data(handler._dataset, kind, size, int(handler._steps_per_execution.numpy()))

    def build(self) -> None:
        """Trace a step of the training, which makes the variables, and run none."""
        import tensorflow as tf

        model, strategy = self.model, self.model.distribute_strategy
        step = tf.function(lambda batch: strategy.run(model.train_step, args=(batch,)))
        with contextlib.suppress(Exception), strategy.scope():  # the first step will say what is wrong
            step.get_concrete_function(self.handler._dataset.element_spec)

    def more_variables(self) -> dict[str, Any]:
        return {"model._train_counter": self.model._train_counter}


def install() -> None:
    """Have `fit` save, once in this process."""
    from ..keras import loops

    if "tf_keras" in loops.saves_of_fit or not patches.is_on(SAVES_2):
        return
    shuffle_order.apply_soon()
    loops.saves_of_fit["tf_keras"] = _fit
    loops.wrap_keras_2()
    patches.replace(SAVES_2, "tf_keras.get_data_handler", _take_data)
    patches.replace(SAVES_2, "tf_keras.sync_to_numpy", _results)


def _fit(real: Any, model: Any, given: dict[str, Any]) -> Any:
    """Call Keras's `fit`, with saves if they are asked for. `given`: its arguments."""
    number, asked = next(Fit.numbers), asked_of(given["callbacks"])
    if asked is None and not context().settings.checkpoints.fit:
        return real(model, **given)
    _running.append(Fit2(number, model, asked, given))
    try:
        return real(model, **_running[-1].arguments())
    finally:
        _running.pop()


def _take_data(real: Any, *args: Any, **kwargs: Any) -> Any:
    from ..keras import data

    fit = _running[-1] if _running else None
    if fit is None or fit.handler is not None or kwargs.get("model") is not fit.model:  # such as the data of a validation
        return real(*args, **kwargs)
    strategy = kwargs["model"].distribute_strategy
    in_order = contextlib.nullcontext() if strategy._should_use_with_coordinator else data.arrays_in_one_order(strategy, kwargs["shuffle"])
    with in_order:
        handler = real(*args, **kwargs)
    kind: Any = type(handler)
    if not strategy._should_use_with_coordinator:  # parameter servers have no steps to leave out
        handler.__class__ = type(kind.__name__, (kind,), {"enumerate_epochs": lambda self: _rest(fit, kind.enumerate_epochs(self))})
    fit.take(handler)
    return handler


def _results(real: Any, logs: Any) -> Any:
    """The metrics of an epoch of which all steps were before the restart."""
    if logs is None and _running and _running[-1].left_out[1]:
        logs = patches.theirs(_running[-1].model.get_metrics_result)
    return real(logs)


def _rest(fit: Fit2, of_keras: Any) -> Iterator[Any]:
    """The epochs that are left, with the data of those before left out. `of_keras`: those that Keras would train."""
    handler, (epochs, steps) = fit.handler, fit.left_out
    if fit.first is not None:
        handler._initial_epoch, handler._initial_step = fit.first, 0
    if epochs >= handler._epochs - handler._initial_epoch:
        return
    is_begun_again = handler._adapter.should_recreate_iterator()
    is_whole = is_begun_again and epochs > 0 and fit.reads_whole_epochs()
    for number, (epoch, iterator) in enumerate(of_keras):
        if number < epochs and is_whole:
            collections.deque(iterator, maxlen=0)
            continue
        if number < epochs:  # each epoch draws its order when it begins
            _leave_out(iterator, 1 if is_begun_again else handler._inferred_steps)
            continue
        if number == epochs and steps:
            _leave_out(iterator, steps)
            handler._initial_step = steps
        yield epoch, iterator
        fit.left_out = (0, 0)


def _leave_out(iterator: Any, count: int) -> None:
    for _ in range(count):
        try:
            patches.theirs(next, iterator)
        except StopIteration:
            print_once("checkpoints: the data end before the place of the checkpoint: fewer batches than the training had trained on")
            break
