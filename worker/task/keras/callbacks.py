"""Keras 3's callbacks with several workers: each worker has its own files, all have the same state, and orch gets reports of progress.

In Keras 2, callbacks know which worker is the chief (tf_keras/src/callbacks.py, `distributed_file_utils`). In Keras 3, every worker writes,
renames and removes the same files. With this module, only the chief writes the backup of a training, which all workers read, and writes
logs to the script's paths. The other workers write logs to their own directories of the run. (`saving` separates checkpoints.)

And in Keras 3 a callback may stop the training in one worker, which the others wait for without an end, or which ends all with an error of
TensorFlow's. With this module, a stop in one worker stops all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from ...protocol import task_files
from .. import patches
from ..input import input_counter
from ..observe import reports, step_times
from ..observe.time_left import FitProgress
from ..patches.features import FIT, REPORTS, REPORTS_2
from ..patches.import_hooks import print_once
from . import state, stops
from .fit import is_wanted

REPORT_S = 1.0
"""The shortest time between two reports of a training's progress."""
PLACE = 5
"""The place of the callbacks among the arguments of `fit`, in Keras 3 and in Keras 2."""
_fits, _numbers = itertools.count(), itertools.count(1)
"""The numbers of `fit`: of those that agree, and of those that report."""


def report(package: str) -> None:
    """Have each `fit` report its progress and its input. `package`: ``keras`` or ``tf_keras``."""
    is_keras_3 = package == "keras"
    feature, name = (REPORTS, "Trainer.fit") if is_keras_3 else (REPORTS_2, "tf_keras.Model.fit")
    base = sys.modules[f"{package}.src.callbacks"].Callback
    progress = _progress(base)
    patches.guard_hooks(feature, progress)

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        input_counter.check_end(args[0] if args else kwargs.get("x"), kwargs.get("steps_per_epoch"))

        def add(given: list[Any]) -> list[Any]:
            return [*given, progress(may_stop=any("EarlyStopping" in type(each).__name__ for each in given))]

        return _with_callbacks(add, real, self, *args, **kwargs)

    patches.replace(feature, name, fit)


def share() -> None:
    """Have the workers of each `fit` agree where they begin and stop, share the state of layers, and write files of their own."""
    from keras.src import callbacks

    shared, agreement = _shared_state(callbacks.Callback), type("Agreement", (Agreement, callbacks.Callback), {})
    for kind in (shared, Agreement):
        patches.guard_hooks(FIT, kind)

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_wanted(self.distribute_strategy):
            return real(self, *args, **kwargs)
        with contextlib.ExitStack() as files:

            def add(given: list[Any]) -> list[Any]:
                _take_own_files(callbacks, given, files)
                return [shared([each for each in given if isinstance(each, callbacks.BackupAndRestore)]), *given, agreement()]

            return _with_callbacks(add, real, self, *args, **kwargs)

    patches.replace(FIT, "Trainer.fit", fit)


def _with_callbacks(add: Callable[[list[Any]], list[Any]], real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `fit` with what `add` makes of the program's callbacks. A `CallbackList` of the program's own stays as it is."""
    given = args[PLACE] if len(args) > PLACE else kwargs.pop("callbacks", None)
    own = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    made = add(list(own)) if type(given).__name__ != "CallbackList" else given
    if len(args) > PLACE:
        return real(self, *args[:PLACE], made, *args[PLACE + 1 :], **kwargs)
    return real(self, *args, callbacks=made, **kwargs)


# --- files for each worker ----------------------------------------------------------------------


def _take_own_files(kinds: Any, given: Iterable[Any], files: contextlib.ExitStack) -> None:
    """Let only the chief write backups, and the others write logs to their own directory of the run. `files`: undoes what must not stay."""
    if os.environ.get("ORCH_IS_CHIEF") == "1":
        return
    for callback in given:
        if isinstance(callback, kinds.BackupAndRestore):
            for name in ("_save_model", "on_train_end"):  # the second one removes the backup
                vars(callback)[name] = lambda *_, **__: None
                files.callback(vars(callback).pop, name, None)
        elif isinstance(callback, kinds.TensorBoard):
            callback.log_dir = _own(callback.log_dir, "tensorboard")
        elif isinstance(callback, kinds.CSVLogger):
            callback.filename = _own(callback.filename, os.path.basename(callback.filename))


def _own(path: str, name: str) -> str:
    """The path in this task's directory of the run that replaces a path which all workers have."""
    directory = os.environ.get("ORCH_LOG_DIR", "")
    own = os.path.join(directory, name)
    if not directory or path == own:  # an earlier fit has replaced the path
        return path
    print_once(f"{path} is the chief's; this worker's is {own}", in_each_task=True, is_note=True)
    return own


# --- added to every fit ------------------------------------------------------------------------


def _sum_over_workers(strategy: Any, *values: float) -> list[float]:
    """The sum of each number over all workers, which all must make this call."""
    import tensorflow as tf

    return [float(value) for value in strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(values, tf.float64), axis=None)]


def _shared_state(base: Any) -> Any:
    class SharedState(base):  # type: ignore[misc]
        """Gives the layers of all workers the same state before the state is used or saved."""

        def __init__(self, backups: list[Any]) -> None:
            super().__init__()
            self._backups = backups

        def on_train_begin(self, logs: Any = None) -> None:
            if is_wanted(self.model.distribute_strategy):
                _agree_on_backups(self.model.distribute_strategy, self._backups)

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            if is_wanted(self.model.distribute_strategy):
                state.share(self.model)

        on_test_begin = on_train_end = on_epoch_end

    return SharedState


def _agree_on_backups(strategy: Any, backups: list[Any]) -> None:
    """End all workers where some have a backup and others not: Keras would load it in collectives that the others do not take part in."""
    from keras.src.utils import file_utils

    has_one = any(file_utils.exists(each._weights_path) for each in backups)
    with_one, workers = _sum_over_workers(strategy, has_one, 1)
    if 0 < with_one < workers:
        found, others = ("a", "do not") if has_one else ("no", "do")
        raise _not_together(f"finds {found} backup, and other workers {others}")


def _not_together(what: str) -> BaseException:
    task = os.environ.get("ORCH_TASK", "this worker")
    remedy = "give BackupAndRestore to all workers, with a directory that all of them see"
    return patches.refusal(RuntimeError(f"{task} {what}: {remedy}"))


class Agreement:
    """Makes all workers begin at the same epoch, stop after the same step, and leave `fit` together. It runs after the program's
    callbacks, of which some workers may have more than others."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self._number, self._epoch, self._has_stopped = next(_fits), 0, False
        self._statistics: list[tuple[Any, Any]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        strategy, epoch = self.model.distribute_strategy, float(self.model._initial_epoch or 0)
        if not is_wanted(strategy):
            return
        stops.carry(False)
        self._statistics = state.statistics(self.model)
        sums = state.sums_of_weights(self.model)
        epochs, workers, *of_all = _sum_over_workers(strategy, epoch, 1, *sums.values())
        state.tell_of_other_weights(sums, of_all, workers)
        if epochs != epoch * workers:
            raise _not_together(f"begins at epoch {epoch:g} and other workers at another one")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        if not is_wanted(strategy):
            return
        if self._statistics:
            before, self._statistics = self._statistics, []
            state.tell_of_normalization(before)
        if stops.is_heard():
            self._stop(f"step {batch + 1} of this epoch")
        elif self.model.stop_training and not stops.do_all_want(strategy, f"{self._number}/{self._epoch}/{batch}"):
            self.model.stop_training, self._has_stopped = False, True
            stops.carry(True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if is_wanted(self.model.distribute_strategy):
            self._agree(f"epoch {epoch + 1}")

    def _agree(self, place: str) -> None:
        """Stop if any worker wants to stop."""
        wants = bool(self._has_stopped or self.model.stop_training)
        wishes, workers = _sum_over_workers(self.model.distribute_strategy, wants, 1)
        if 0 < wishes < workers:
            self._stop(place)
        self.model.stop_training = wishes > 0

    def _stop(self, place: str) -> None:
        """Stop, which not all workers want."""
        stops.carry(False)
        if self._has_stopped or self.model.stop_training:
            task = os.environ.get("ORCH_TASK", "this worker")
            print_once(f"{task} has set stop_training, and other workers have not: all workers stop after {place}", in_each_task=True)
        self.model.stop_training, self._has_stopped = True, False

    def on_train_end(self, logs: Any = None) -> None:
        """Wait until the chief has removed its backup: the next `fit` of another worker must not find it."""
        if is_wanted(self.model.distribute_strategy):
            sums = state.sums_of_weights(self.model)
            workers, *of_all = _sum_over_workers(self.model.distribute_strategy, 1, *sums.values())
            state.tell_of_other_weights(sums, of_all, workers)


def _report_values(logs: Any, epoch: int, step: int, took: float) -> None:
    """Report the values that `fit` shows, with the epoch and its step. `took`: the seconds that the steps of this epoch have taken."""
    progress: dict[str, float] = {"epoch": epoch}
    if step:
        progress |= {"step": step, "steps_per_s": round(step / max(took, 1e-6), 2)}
    values = {name: value for name, value in (logs or {}).items() if name not in ("at", *progress)}
    with contextlib.suppress(TypeError, ValueError):  # a metric of the program may be no number
        reports.report({**progress, **values})


def _progress(base: Any) -> Any:
    """The callback that reports. Under ParameterServerStrategy steps count when scheduled, and results come with the epoch."""

    class Reports(base):  # type: ignore[misc]
        """Reports epoch, step, steps per second, the values that `fit` shows, and the time left."""

        def __init__(self, *, may_stop: bool = False) -> None:
            super().__init__()
            self._progress = FitProgress(next(_numbers), may_stop=may_stop)
            self._supports_tf_logs = True  # Keras 2: for a step without a report, no values are fetched
            self._epoch = self._step = 0
            self._since = self._reported = time.monotonic()
            self._until: float | None = None  # when the last step ended; None: unknown before the end of the epoch

        def on_train_begin(self, logs: Any = None) -> None:
            step_times.begin_fit()

        def on_train_end(self, logs: Any = None) -> None:
            step_times.end_fit()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._step, self._since = epoch + 1, 0, time.monotonic()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps, self._step = batch + 1 - self._step, batch + 1
            self._until = time.monotonic() if isinstance(logs, dict) else None
            if self._until is None:
                return
            step_times.advance(steps)
            if self._until - self._reported >= REPORT_S:
                self._report(logs, self._until)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now = time.monotonic()
            self._report(logs, self._until or now)
            self._progress.end_epoch(self._step, (self._until or now) - self._since, now - self._since)
            reports.note(task_files.PROGRESS, self._progress.tell(self.params, epoch + 2, 0, 0.0))

        def _report(self, logs: Any, until: float) -> None:
            self._reported, took = time.monotonic(), until - self._since
            reports.note(task_files.PROGRESS, self._progress.tell(self.params, self._epoch, self._step, took))
            _report_values(logs, self._epoch, self._step, took)

    # Keras 2 warns of slow callbacks if a class has another name than those of Keras's own callbacks (`CallbackList._check_timing`).
    Reports.__name__ = "LambdaCallback"
    return Reports
