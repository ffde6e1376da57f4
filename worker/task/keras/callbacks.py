"""Keras 3's callbacks with several workers: each worker has its own files, all have the same statistics, and orch gets reports of progress.

In Keras 2, callbacks know which worker is the chief (tf_keras/src/callbacks.py, `distributed_file_utils`). In Keras 3, every worker writes,
renames and removes the same files. With this module, only the chief writes the backup of a training, which all workers read, and writes
logs to the script's paths. The other workers write logs to their own directories of the run. (`saving` separates checkpoints.)

In Keras 3, each worker has its own moving mean and variance of `BatchNormalization`, from its own data, so the workers' models differ
(keras/src/layers/normalization/batch_normalization.py; Keras 2 used the mean over all replicas). With this module, `fit` sets them to the
mean over all workers before they are used or saved.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from ..import_hooks import named_like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .fit import Wanted

REPORT_S = 1.0
"""The shortest time between two reports of a training's progress."""


def mend(callbacks: Any, trainer: Any, is_wanted: Wanted | None, *, reports: bool) -> None:
    """Change the module of Keras's callbacks.

    `is_wanted`: None in a task without other tasks. `reports`: `fit` reports its progress by `worker.report`.
    """
    first, last = [], []
    if is_wanted is not None:
        _keep_apart(callbacks, is_wanted)
        first.append(_shared_statistics(callbacks.Callback, is_wanted))
        last.append(_agreement(callbacks.Callback, is_wanted))
    if reports:
        last.append(_progress(callbacks.Callback))
    _add_to_fit(callbacks.CallbackList, trainer.TensorFlowTrainer, first, last)


def report_keras_2(callbacks: Any, training: Any) -> None:
    """Let `fit` of Keras 2 report its progress, too. `callbacks`, `training`: modules of Keras 2."""
    _add_to_fit(callbacks.CallbackList, training.Model, [], [_progress(callbacks.Callback)])


def _add_to_fit(callback_list: Any, trainer: Any, first: list[Any], last: list[Any]) -> None:
    """Add callbacks to each `fit`, before and after its own. A list that a program makes for a loop of its own stays unchanged."""
    real_fit, real_init = trainer.fit, callback_list.__init__
    is_awaited: list[bool] = []
    """For each running `fit`: whether it will still make its list."""

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_awaited.append(True)
        try:
            return real_fit(self, *args, **kwargs)
        finally:
            is_awaited.pop()

    def __init__(self: Any, callbacks: Any = None, add_history: bool = False, *args: Any, **kwargs: Any) -> None:
        if add_history and is_awaited and is_awaited[-1]:
            is_awaited[-1] = False
            given = callbacks if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
            callbacks = [*(make() for make in first), *given, *(make() for make in last)]
        real_init(self, callbacks, add_history, *args, **kwargs)

    trainer.fit = named_like(real_fit, fit)
    callback_list.__init__ = named_like(real_init, __init__)


# --- files for each worker ----------------------------------------------------------------------


def _keep_apart(callbacks: Any, is_wanted: Wanted) -> None:
    if os.environ.get("ORCH_IS_CHIEF") == "1":
        return
    for method in ("_save_model", "on_train_end"):  # on_train_end removes the backup
        _wrap(callbacks.BackupAndRestore, method, lambda real, self, *args, **kwargs: None, is_wanted)
    _wrap(callbacks.TensorBoard, "set_model", _log_to_own_directory, is_wanted)
    _wrap(callbacks.CSVLogger, "on_train_begin", _log_to_own_file, is_wanted)


def _wrap(owner: Any, name: str, wrapper: Any, is_wanted: Wanted) -> None:
    """Call `wrapper(real, self, ...)` in place of a method, for models that several workers train."""
    real = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = args[0] if name == "set_model" else self.model
        if not is_wanted(getattr(model, "distribute_strategy", None)):
            return real(self, *args, **kwargs)
        return wrapper(real, self, *args, **kwargs)

    setattr(owner, name, named_like(real, method))


def _log_to_own_directory(real: Any, self: Any, model: Any) -> Any:
    self.log_dir = _own(self.log_dir, "tensorboard")
    return real(self, model)


def _log_to_own_file(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    self.filename = _own(self.filename, os.path.basename(self.filename))
    return real(self, *args, **kwargs)


_told: set[str] = set()
"""The paths of which this process has said that the chief alone uses them."""


def _own(path: str, name: str) -> str:
    """The path in this task's directory of the run that replaces a path which all workers have."""
    directory = os.environ.get("ORCH_LOG_DIR", "")
    own = os.path.join(directory, name)
    if not directory or path == own:  # an earlier fit has replaced the path
        return path
    if path not in _told:  # each `fit` may have new callbacks
        _told.add(path)
        print(f"orch: {path} is the chief's; this worker's is {own}", file=sys.stderr)
    return own


# --- added to every fit ------------------------------------------------------------------------


def _mean_over_workers(strategy: Any, value: float) -> float:
    """The mean of a number over all workers, which all must make this call."""
    import tensorflow as tf

    return float(strategy.reduce("MEAN", tf.constant(value, tf.float64), axis=None))


def _shared_statistics(base: Any, is_wanted: Wanted) -> Any:
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
            if not is_wanted(strategy):
                return
            for layer in self.model._flatten_layers():
                if any(kind.__name__ == "BatchNormalization" for kind in type(layer).__mro__):
                    for variable in layer.non_trainable_variables:
                        if "float" in str(variable.dtype):
                            own = tf.convert_to_tensor(variable.value)  # TensorFlow takes the variable itself for one value of all workers
                            variable.assign(strategy.reduce("MEAN", own, axis=None))

    return SharedStatistics


def _agreement(base: Any, is_wanted: Wanted) -> Any:
    class Agreement(base):  # type: ignore[misc]
        """Makes all workers begin at the same epoch and leave `fit` together; runs after `BackupAndRestore`, which some may not have."""

        def on_train_begin(self, logs: Any = None) -> None:
            strategy, epoch = self.model.distribute_strategy, float(self.model._initial_epoch or 0)
            if is_wanted(strategy) and _mean_over_workers(strategy, epoch) != epoch:
                raise RuntimeError(
                    f"{os.environ.get('ORCH_TASK', 'this worker')} begins at epoch {epoch:g} and other workers at another one: give "
                    "BackupAndRestore to all workers, with a directory that all of them see"
                )

        def on_train_end(self, logs: Any = None) -> None:
            """Wait until the chief has removed its backup: the next `fit` of another worker must not find it."""
            if is_wanted(self.model.distribute_strategy):
                _mean_over_workers(self.model.distribute_strategy, 0.0)

    return Agreement


def _progress(base: Any) -> Any:
    class Progress(base):  # type: ignore[misc]
        """Reports epoch, step, steps per second, and the values that `fit` shows.

        Under ParameterServerStrategy a step counts when it is scheduled, and its results are unknown before the end of the epoch.
        """

        def __init__(self) -> None:
            super().__init__()
            self._supports_tf_logs = True  # Keras 2: for a step without a report, no values are fetched
            self._epoch = self._step = 0
            self._since = self._reported = time.monotonic()
            self._until: float | None = None
            """When the last step ended; None: unknown before the end of the epoch."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._step, self._since = epoch + 1, 0, time.monotonic()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._step, self._until = batch + 1, time.monotonic() if isinstance(logs, dict) else None
            if self._until is not None and self._until - self._reported >= REPORT_S:
                self._report(logs, self._until)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._report(logs, self._until or time.monotonic())

        def _report(self, logs: Any, until: float) -> None:
            from .. import reports

            self._reported = time.monotonic()
            progress: dict[str, float] = {"epoch": self._epoch}
            if self._step:
                progress |= {"step": self._step, "steps_per_s": round(self._step / max(until - self._since, 1e-6), 2)}
            values = {name: value for name, value in (logs or {}).items() if name not in ("at", *progress)}
            with contextlib.suppress(TypeError, ValueError):  # a metric of the program may be no number
                reports.report({**progress, **values})

    # Keras 2 warns of slow callbacks if a class has another name than those of Keras's own callbacks (`CallbackList._check_timing`).
    Progress.__name__ = "LambdaCallback"
    return Progress
