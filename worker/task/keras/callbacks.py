"""Keras 3's callbacks with several workers: one worker writes, the statistics are everybody's, and orch is told how far training is.

Keras 2 had its callbacks know who the chief is (tf_keras/src/callbacks.py, `distributed_file_utils`). Keras 3 has not: every worker
writes, renames and removes the same files. Here the chief alone writes, and every worker reads what the chief has written.

Keras 3 makes the moving mean and variance of `BatchNormalization` a variable of each worker's own, and each worker moves it by what it
alone has seen, so that the workers' models differ (keras/src/layers/normalization/batch_normalization.py; Keras 2 took the mean
over all replicas when they were read). Here `fit` sets them to the mean over all workers before they are used or saved.
"""

from __future__ import annotations

import contextlib
import os
import time

from .fit import named_like, works_with_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPORT_S = 1.0
"""The shortest time between two reports of a training's progress."""


def mend(callbacks: Any, *, with_others: bool, reports: bool) -> None:
    """Mend the module of Keras's callbacks.

    `with_others`: the task is one of several. `reports`: `fit` says how far it is by `worker.report`.
    """
    first, last = [], []
    if with_others:
        _let_one_write(callbacks)
        first.append(_shared_statistics(callbacks.Callback))
        last.append(_agreement(callbacks.Callback))
    if reports:
        last.append(_progress(callbacks.Callback))
    _add_to_fit(callbacks.CallbackList, first, last)


def _add_to_fit(callback_list: Any, first: list[Any], last: list[Any]) -> None:
    """Let each `fit` have these callbacks before and behind its own."""
    real = callback_list.__init__

    def __init__(self: Any, callbacks: Any = None, add_history: bool = False, *args: Any, **kwargs: Any) -> None:
        if add_history:
            given = callbacks if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
            callbacks = [*(make() for make in first), *given, *(make() for make in last)]
        real(self, callbacks, add_history, *args, **kwargs)

    callback_list.__init__ = named_like(real, __init__)


# --- one worker writes -------------------------------------------------------------------------


def _let_one_write(callbacks: Any) -> None:
    if os.environ.get("ORCH_IS_CHIEF") != "1":
        _wrap(callbacks.ModelCheckpoint, "_save_model", _without_writing)
        for method in ("_save_model", "on_train_end"):  # the second one removes the backup
            _wrap(callbacks.BackupAndRestore, method, lambda real, self, *args, **kwargs: None)
        _wrap(callbacks.TensorBoard, "set_model", _into_own_directory)
        _wrap(callbacks.CSVLogger, "on_train_begin", _into_nothing)


def _wrap(owner: Any, name: str, wrapper: Any) -> None:
    """Call `wrapper(real, self, ...)` in place of a method, for models that are trained with others."""
    real = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = args[0] if name == "set_model" else self.model
        if not works_with_others(model.distribute_strategy):
            return real(self, *args, **kwargs)
        return wrapper(real, self, *args, **kwargs)

    setattr(owner, name, named_like(real, method))


def _without_writing(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """All that a checkpoint does but the file: which epoch was the best one is everybody's to know."""
    model = self.model
    for name in ("save", "save_weights"):
        object.__setattr__(model, name, lambda *_, **__: None)
    try:
        return real(self, *args, **kwargs)
    finally:
        for name in ("save", "save_weights"):
            object.__delattr__(model, name)


def _into_own_directory(real: Any, self: Any, model: Any) -> Any:
    self.log_dir = os.path.join(os.environ.get("ORCH_LOG_DIR") or os.path.join(self.log_dir, os.environ["ORCH_TASK"]), "tensorboard")
    return real(self, model)


def _into_nothing(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    self.filename = os.devnull
    return real(self, *args, **kwargs)


# --- what is added to every fit ----------------------------------------------------------------


def _mean_over_workers(strategy: Any, value: float) -> float:
    """The mean of a number over all workers: each of them must ask."""
    import tensorflow as tf

    return float(strategy.reduce("MEAN", tf.constant(value, tf.float64), axis=None))


def _shared_statistics(base: Any) -> Any:
    class SharedStatistics(base):  # type: ignore[misc]
        """Sets the moving statistics of `BatchNormalization` to their mean over all workers, before they are used or saved."""

        def on_test_begin(self, logs: Any = None) -> None:
            self._share()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._share()

        def on_train_end(self, logs: Any = None) -> None:
            self._share()

        def _share(self) -> None:
            import tensorflow as tf

            strategy = self.model.distribute_strategy
            if not works_with_others(strategy):
                return
            for layer in self.model._flatten_layers():
                if any(kind.__name__ == "BatchNormalization" for kind in type(layer).__mro__):
                    for variable in layer.non_trainable_variables:
                        if "float" in str(variable.dtype):
                            own = tf.convert_to_tensor(variable.value)  # the variable itself counts as one value of all workers
                            variable.assign(strategy.reduce("MEAN", own, axis=None))

    return SharedStatistics


def _agreement(base: Any) -> Any:
    class Agreement(base):  # type: ignore[misc]
        """Has all workers begin at the same epoch, and leave `fit` together: behind `BackupAndRestore`, which some of them may not have."""

        def on_train_begin(self, logs: Any = None) -> None:
            strategy, epoch = self.model.distribute_strategy, float(self.model._initial_epoch or 0)
            if works_with_others(strategy) and _mean_over_workers(strategy, epoch) != epoch:
                raise RuntimeError(
                    f"{os.environ.get('ORCH_TASK', 'this worker')} begins at epoch {epoch:g} and other workers at another one: give "
                    "BackupAndRestore to all workers, with a directory that all of them see"
                )

        def on_train_end(self, logs: Any = None) -> None:
            """The chief has removed its backup by now: no other worker looks for one in its next `fit` before that."""
            if works_with_others(self.model.distribute_strategy):
                _mean_over_workers(self.model.distribute_strategy, 0.0)

    return Agreement


def _progress(base: Any) -> Any:
    class Progress(base):  # type: ignore[misc]
        """Reports epoch, step, steps a second, and what `fit` shows, to whoever asks orch."""

        def __init__(self) -> None:
            super().__init__()
            self._epoch = 0
            self._since = self._told = time.monotonic()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._since = epoch + 1, time.monotonic()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if time.monotonic() - self._told >= REPORT_S:
                self._report(logs, steps_per_s=round((batch + 1) / (time.monotonic() - self._since), 2), step=batch + 1)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._report(logs)

        def _report(self, logs: Any, **more: float) -> None:
            from .. import reports

            self._told = time.monotonic()
            values = {name: value for name, value in (logs or {}).items() if name not in ("at", "epoch", *more)}
            with contextlib.suppress(TypeError, ValueError):  # a metric that is no number is the program's own affair
                reports.report({"epoch": self._epoch, **more, **values})

    return Progress
