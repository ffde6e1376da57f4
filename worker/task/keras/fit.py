"""Keras 3's `fit` under MultiWorkerMirroredStrategy with several workers: where orch changes it, what it warns of, and where it refuses.

Without orch it fails (keras/src/backend/tensorflow/trainer.py; keras#20585; every Keras from 3.3 to 3.16):

* `_maybe_symbolic_build` reduces a batch, a structure of `PerReplica` values, with a method for single values (see `feed`).
* `make_train_function` makes a function that reduces scalars along an axis, which scalars do not have (see `steps`).
* Each worker counts the batches of its own data, so a worker with fewer batches leaves an epoch that the other workers continue.

If the feature does not fit the release of Keras, `fit` ends all workers with the remedy.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from ...protocol import task_files
from .. import failure, patches
from ..context import context
from ..observe import reports
from ..patches.features import FIT, REFUSAL, WARNINGS
from ..patches.import_hooks import print_once
from ..shared import shared
from ..strategy import strategy_builder

_is_apart = False
"""A `fit` of this process has trained a model outside of the scope."""

_mended: list[bool] = shared("mended fit", list)
"""Not empty: orch changes `fit` in this process, and not only a program that imports `worker`."""
TRAINER = "keras.src.backend.tensorflow.trainer"
"""The module of Keras 3 that has `fit`; it is imported if TensorFlow is Keras's backend."""


def is_wanted(strategy: Any) -> bool:
    """True if orch's functions are used under a strategy: MultiWorkerMirroredStrategy with several workers."""
    return bool(_mended) and has_workers(strategy)


def has_workers(strategy: Any) -> bool:
    """True if a strategy trains with several workers in step."""
    extended: Any = getattr(strategy, "extended", None)
    return type(extended).__name__ == "CollectiveAllReduceExtended" and bool(extended._in_multi_worker_mode())


def mend() -> None:
    """Have several workers train, or, if a name of Keras does not fit, refuse `fit` there."""
    if patches.problems(FIT):
        patches.replace(REFUSAL, "Trainer.fit", _refuse)
    else:
        _mended.append(True)


def _refuse(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """End all workers, in each of which the program calls `fit`: Keras's own would fail with an error that names no cause."""
    if has_workers(self.distribute_strategy):
        raise patches.refusal(RuntimeError(f"orch: {patches.describe(FIT, patches.problems(FIT))}"))
    return real(self, *args, **kwargs)


def name_parts() -> None:
    """Have lines printed about several replicas of one process, as under MirroredStrategy."""

    def make_predict_function(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and failure.caller().f_code.co_name == "predict_on_batch":
            print_once(f"predict_on_batch: Keras gives the batch to each of the {replicas} replicas, and returns each row {replicas} times")
        return real(self, *args, **kwargs)

    running: list[tuple[int, Any]] = []

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync < 2:
            return real(self, *args, **kwargs)
        if others := _no_means(self):
            print_once(f"the metric {others[0]!r} is not a mean over rows: for single batches Keras shows the mean of the replicas' values")
        here = (threading.get_ident(), strategy)
        if any(other is strategy and thread != here[0] for thread, other in running):
            print_once(
                "fit runs in two threads under one strategy: TensorFlow mixes their sums, so numbers are wrong, or fit hangs. "
                "fix: train one after the other, or in a process each"
            )
        running.append(here)
        try:
            return real(self, *args, **kwargs)
        finally:
            running.remove(here)

    patches.replace(WARNINGS, "Trainer.make_predict_function", make_predict_function)
    patches.replace(WARNINGS, "Trainer.fit", fit)


def _no_means(model: Any) -> list[str]:
    """The metrics of a model, as the program names them, whose value for two parts is not the mean of the values of the parts."""
    from keras import metrics, tree
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper

    # Keras makes a metric of a text later. To make one here would change the names of those that follow.
    classes = {name.lower(): each for name, each in vars(metrics).items() if isinstance(each, type)}
    found = []
    for given in tree.flatten(getattr(model._compile_metrics, "_user_metrics", None)):
        kind: type = classes.get(given.replace("_", "").lower(), str) if isinstance(given, str) else type(given)
        if issubclass(kind, metrics.Metric) and not issubclass(kind, MeanMetricWrapper) and kind is not metrics.Mean:
            found.append(given if isinstance(given, str) else given.name)
    return found


@patches.guarded(WARNINGS)
def tell_of_other_scope(strategy: Any) -> None:
    """Say that a `fit` under this strategy trains in each worker by itself, in a cluster whose workers train together."""
    global _is_apart
    is_alone = strategy is not None and strategy.num_replicas_in_sync < 2
    if is_alone and strategy_builder.input_pipelines(context())[0] > 1 and _has_strategy():
        print_once(
            "fit trains a model made outside of a strategy's scope: each worker trains one of its own on all data. "
            "fix: make and compile the model inside of `with strategy.scope():`"
        )
        if not _is_apart:
            _is_apart = True
            reports.note(task_files.APART)


@patches.guarded(WARNINGS)
def tell_of_right_scope() -> None:
    """A `fit` trains in all workers together. The remark at the end of the run is about the last `fit`: one before may be a baseline."""
    global _is_apart
    if _is_apart:
        _is_apart = False
        reports.note(task_files.APART, False)


def _has_strategy() -> bool:
    """True if the program has made the strategy of the workers. Where it has made none, the end of the run says that none was formed."""
    made = sys.modules["tensorflow.python.eager.context"].context()
    return getattr(made, "_collective_ops_server_def", True) is not None
