"""The `fit` of Keras 2 (tf-keras) continues after a restart with the step after its newest save, as that of Keras 3 does (`keras_saves`).

Keras 2 counts epochs and steps in its `DataHandler`, and makes its metrics and the optimizer's variables within the first step.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from .. import patches
from ..import_hooks import print_once
from ..input import shuffle_order
from ..patches.table import SAVES_2
from .fit_session import Data, Fit, mend

_fits = 0
_now: Fit2 | None = None
"""The `fit` that runs in this process."""


class Fit2(Fit):
    """One call of Keras 2's `fit`. `iterator`: its `DataHandler`."""

    def data(self) -> Data:
        handler = self.iterator
        kind = {"DatasetAdapter": "dataset", "TensorLikeDataAdapter": "arrays"}.get(type(handler._adapter).__name__, "")
        size = handler._adapter.batch_size() if kind == "arrays" else None
        return Data(handler._dataset, kind, size, int(handler._steps_per_execution.numpy()))

    def build(self) -> None:
        """Trace a step of the training, which makes what it lacks, and run none."""
        import tensorflow as tf

        model, strategy = self.model, self.model.distribute_strategy
        step = tf.function(lambda batch: strategy.run(model.train_step, args=(batch,)))
        with contextlib.suppress(Exception), strategy.scope():  # the first step will say what is wrong
            step.get_concrete_function(self.iterator._dataset.element_spec)

    def more_variables(self) -> dict[str, Any]:
        return {"model._train_counter": self.model._train_counter}

    def begin_with(self, epoch: int, batch: int, first: int) -> None:
        self.left_out = (epoch - first, batch)

    def end(self) -> None:
        self.is_over = True


def install() -> None:
    """Change Keras 2's functions, once in this process."""
    if not patches.is_on(SAVES_2):
        return
    shuffle_order.apply_soon()
    patches.replace(SAVES_2, "tf_keras.Model._check_call_args", _begin)
    patches.replace(SAVES_2, "tf_keras.get_data_handler", _take_data)
    patches.replace(SAVES_2, "tf_keras.DataHandler.enumerate_epochs", _enumerate)
    patches.replace(SAVES_2, "tf_keras.sync_to_numpy", _results)
    mend(SAVES_2, "tf_keras.", lambda: _now)


def _begin(real: Any, model: Any, method_name: str) -> None:
    """The beginning of a `fit`, among others."""
    global _fits, _now
    real(model, method_name)
    if method_name == "fit":
        _fits += 1
        _now = Fit2(_fits, model)


def _results(real: Any, logs: Any) -> Any:
    """The metrics of an epoch of which all steps were before the restart."""
    if logs is None and _now is not None and _now.is_begun_within:
        logs = _now.model.get_metrics_result()
    return real(logs)


def _take_data(real: Any, *args: Any, **kwargs: Any) -> Any:
    from ..keras import data

    model = kwargs.get("model")
    if _now is None or _now.is_over or _now.iterator is not None or model is not _now.model:
        return real(*args, **kwargs)
    strategy = model.distribute_strategy
    in_order = contextlib.nullcontext() if strategy._should_use_with_coordinator else data.arrays_in_one_order(strategy, kwargs["shuffle"])
    with in_order:
        _now.iterator = real(*args, **kwargs)
    _now.iterator._orch_fit = _now
    return _now.iterator


def _enumerate(real: Any, self: Any) -> Iterator[Any]:
    """The epochs that are left, with the data of those before left out."""
    fit: Any = getattr(self, "_orch_fit", None)
    epochs, steps = (0, 0) if fit is None else fit.left_out
    if epochs >= self._epochs - self._initial_epoch:
        return
    is_begun_anew = self._adapter.should_recreate_iterator()
    is_whole = is_begun_anew and epochs > 0 and fit.reads_whole_epochs()
    for number, (epoch, iterator) in enumerate(real(self)):
        if number < epochs and is_whole:
            collections.deque(iterator, maxlen=0)
            continue
        if number < epochs:  # each epoch draws its order when it begins
            _leave_out(iterator, 1 if is_begun_anew else self._inferred_steps)
            continue
        if number == epochs and steps:
            _leave_out(iterator, steps)
            self._initial_step = steps
        yield epoch, iterator


def _leave_out(iterator: Any, count: int) -> None:
    for _ in range(count):
        try:
            next(iterator)
        except StopIteration:
            print_once("checkpoints: the data end before the place of the save: fewer batches than the training had trained on")
            break
