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
import time
from typing import Any

from ..import_hooks import print_once, replace
from ..input import input_counter
from .fit import is_wanted

REPORT_S = 1.0
"""The shortest time between two reports of a training's progress."""
_PLACE = 5
"""The place of the callbacks among the arguments of `fit`, in Keras 3 and in Keras 2."""


def mend(callbacks: Any, model: Any, *, is_in_cluster: bool, is_reported: bool) -> None:
    """Change Keras's callbacks, and add orch's own to each `fit`. `callbacks`: the module of Keras 3 or 2; `model`: the class with `fit`.

    `is_in_cluster`: several workers may train one model. `is_reported`: `fit` reports its progress and its input.
    """
    base = callbacks.Callback
    first = [_shared_statistics(base)] if is_in_cluster else []
    last = [*([_agreement(base)] if is_in_cluster else []), *([_progress(base)] if is_reported else [])]

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_reported:
            input_counter.begin()
            input_counter.check_end(args[0] if args else kwargs.get("x"), kwargs.get("steps_per_epoch"))
        given = args[_PLACE] if len(args) > _PLACE else kwargs.pop("callbacks", None)
        if not isinstance(given, callbacks.CallbackList):  # a program's own list stays as it is
            own = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
            given = [*(make() for make in first), *own, *(make() for make in last)]
        if len(args) > _PLACE:
            return real(self, *args[:_PLACE], given, *args[_PLACE + 1 :], **kwargs)
        return real(self, *args, callbacks=given, **kwargs)

    replace(model, "fit", fit)
    if is_in_cluster and os.environ.get("ORCH_IS_CHIEF") != "1":
        replace(callbacks.BackupAndRestore, "_save_model", _leave_to_the_chief)
        replace(callbacks.BackupAndRestore, "on_train_end", _leave_to_the_chief)  # this removes the backup
        replace(callbacks.TensorBoard, "set_model", _log_to_own_directory)
        replace(callbacks.CSVLogger, "on_train_begin", _log_to_own_file)


# --- files for each worker ----------------------------------------------------------------------


def _leave_to_the_chief(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    if not is_wanted(self.model.distribute_strategy):
        real(self, *args, **kwargs)


def _log_to_own_directory(real: Any, self: Any, model: Any) -> None:
    if is_wanted(model.distribute_strategy):
        self.log_dir = _own(self.log_dir, "tensorboard")
    real(self, model)


def _log_to_own_file(real: Any, self: Any, logs: Any = None) -> None:
    if is_wanted(self.model.distribute_strategy):
        self.filename = _own(self.filename, os.path.basename(self.filename))
    real(self, logs)


def _own(path: str, name: str) -> str:
    """The path in this task's directory of the run that replaces a path which all workers have."""
    directory = os.environ.get("ORCH_LOG_DIR", "")
    own = os.path.join(directory, name)
    if not directory or path == own:  # an earlier fit has replaced the path
        return path
    print_once(f"{path} is the chief's; this worker's is {own}", in_each_task=True)
    return own


# --- added to every fit ------------------------------------------------------------------------


def _mean_over_workers(strategy: Any, value: float) -> float:
    """The mean of a number over all workers, which all must make this call."""
    import tensorflow as tf

    return float(strategy.reduce("MEAN", tf.constant(value, tf.float64), axis=None))


def _shared_statistics(base: Any) -> Any:
    class SharedStatistics(base):  # type: ignore[misc]
        """Sets the moving statistics of `BatchNormalization` to their mean over all workers, before they are used or saved."""

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
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

        on_test_begin = on_train_end = on_epoch_end

    return SharedStatistics


def _agreement(base: Any) -> Any:
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
