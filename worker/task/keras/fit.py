"""Keras 3's `fit` under MultiWorkerMirroredStrategy with several workers: replaces the functions of Keras that fail.

These fail, in keras/src/backend/tensorflow/trainer.py (keras#20585; every Keras from 3.3 to 3.16):

* `_maybe_symbolic_build` reduces a batch, a structure of `PerReplica` values, with a method for single values.
* `make_train_function` makes a function that reduces scalars along an axis, which scalars do not have (see `steps`).
* Each worker counts the batches of its own data, so a worker with fewer batches leaves an epoch that the other workers continue.

The replacements work only for this strategy: under every other strategy, and with one worker, Keras's own functions run (but see
`_begins_with_the_first`). If the feature does not fit the release of Keras, `fit` ends all workers with the remedy.
"""

from __future__ import annotations

import sys
from typing import Any

from ...protocol import task_files
from .. import patches, reports
from ..context import context
from ..import_hooks import print_once
from ..input import input_policy
from ..patches.table import FIT, REFUSAL, WARNINGS
from ..strategy import strategy_builder
from . import data

_is_apart = False
"""A `fit` of this process has trained a model outside of the scope."""

TRAINER = "keras.src.backend.tensorflow.trainer"
"""The module of Keras 3 that has `fit`; it is imported if TensorFlow is Keras's backend."""


def trainer_of() -> Any:
    """Keras's class with `fit`, which has had another name since 3.16."""
    module = sys.modules[TRAINER]
    return getattr(module, "TensorFlowTrainer", None) or module.Trainer


def is_wanted(strategy: Any) -> bool:
    """Whether orch's functions are used under a strategy: MultiWorkerMirroredStrategy with several workers."""
    return has_workers(strategy) and patches.is_on(FIT)


def has_workers(strategy: Any) -> bool:
    """Whether a strategy trains with several workers in step."""
    extended: Any = getattr(strategy, "extended", None)
    return type(extended).__name__ == "CollectiveAllReduceExtended" and bool(extended._in_multi_worker_mode())


def mend() -> None:
    """Replace the functions of Keras's trainer that fail. A replacement calls the original where it is not wanted."""
    if patches.problems(FIT):
        patches.replace(REFUSAL, "Trainer.fit", _refuse)
        return
    patches.replace(FIT, "Trainer._maybe_symbolic_build", _build)
    patches.extend(FIT, "TFEpochIterator", _epochs)
    patches.replace(FIT, "Trainer.predict", data.predict_in_order)


def _refuse(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """End all workers, in each of which the program calls `fit`: Keras's own would fail with an error that names no cause."""
    if has_workers(self.distribute_strategy):
        raise RuntimeError(f"orch: {patches.describe(FIT, patches.problems(FIT))}")
    return real(self, *args, **kwargs)


def name_parts() -> None:
    """Have a line printed where several replicas of one process, as under MirroredStrategy, get parts of different size."""

    def epochs(base: Any) -> Any:
        class EpochIterator(base):  # type: ignore[misc]
            def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
                super().__init__(distribute_strategy, *args, **kwargs)
                replicas = getattr(distribute_strategy, "num_replicas_in_sync", 1)
                if replicas > 1:
                    data.warn_of_uneven_parts(self._distributed_dataset, self.data_adapter, replicas)

        return EpochIterator

    def predict_on_batch(real: Any, self: Any, x: Any) -> Any:
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            print_once(f"predict_on_batch: Keras gives the batch to each of the {replicas} replicas, and returns each row {replicas} times")
        return real(self, x)

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        is_divided = self.distribute_strategy.num_replicas_in_sync > 1
        others = _no_means(self) if is_divided else []
        if is_divided:
            tell_of_circle(self)
        if others:
            print_once(
                f"the metric {others[0]!r} is no mean over rows: what Keras shows of single batches is the mean of the replicas' own "
                "values, and not the value of one process; at the end of an epoch it is the value of one process"
            )
        return real(self, *args, **kwargs)

    patches.extend(WARNINGS, "TFEpochIterator", epochs)
    patches.replace(WARNINGS, "Trainer.predict_on_batch", predict_on_batch)
    patches.replace(WARNINGS, "Trainer.fit", fit)


def tell_of_circle(model: Any) -> None:
    from keras import tree

    losses = tree.flatten(getattr(model._compile_loss, "_user_loss", None))
    if any(getattr(loss, "__name__", loss if isinstance(loss, str) else type(loss).__name__).lower() == "circle" for loss in losses):
        print_once(
            "the loss Circle compares the rows of a batch with each other, on several replicas those of a part: other numbers result"
        )


def _no_means(model: Any) -> list[str]:
    """The names of a model's metrics whose value for two parts is not the mean of the values of the parts."""
    from keras import metrics, tree
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper

    given = tree.flatten(getattr(model._compile_metrics, "_user_metrics", None))
    made = [metric for metric in given if isinstance(metric, metrics.Metric)]
    return [metric.name for metric in made if not isinstance(metric, MeanMetricWrapper) and type(metric) is not metrics.Mean]


def _build(real: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build the model from the shapes of the data: Keras would take a batch for this, which a generator makes only once. A model without
    `call` (its `train_step` calls the parts of the model, as in a GAN) cannot be built, and need not be: Keras builds none without a
    strategy.
    """
    from keras import Model

    strategy = self._distribute_strategy
    if type(self).call is Model.call and is_wanted(strategy):
        return
    if iterator is not None and (is_wanted(strategy) or _begins_with_the_first(iterator, strategy)):
        from keras.src import tree

        data_batch = tree.map_structure(_of_first_replica, iterator._distributed_dataset.element_spec)
        iterator = None
    real(self, iterator, data_batch)


def _begins_with_the_first(iterator: Any, strategy: Any) -> bool:
    """Whether a worker that is alone begins with the first order of a shuffle, as several workers do, and a process without a strategy.

    Keras would take a batch for the model, and so begin with the second order. It does so by hand under a strategy that the script makes,
    and there the script keeps its numbers. With `worker.strategy` a script has no strategy by hand.
    """
    if not hasattr(getattr(strategy, "extended", None), "_in_multi_worker_mode"):
        return False
    if input_policy.is_elastic() or getattr(strategy, strategy_builder.BUILT_HERE, False):
        return True
    data.tell_of_second_order(iterator)
    return False


def _of_first_replica(spec: Any) -> Any:
    """The spec of the first replica's values: a `PerReplicaSpec` (TensorFlow) has one for each replica of this worker."""
    parts = getattr(spec, "_value_specs", None)
    return parts[0] if parts else spec


def _epochs(base: Any) -> Any:
    """Keras's class `TFEpochIterator`, changed for several workers. `base`: the class so far."""
    import tensorflow as tf

    class EpochIterator(base):  # type: ignore[misc]
        """Makes each epoch as long as that of the worker with the most batches: TensorFlow gives the other workers empty batches
        (tensorflow/python/distribute/input_lib.py, `DistributedIteratorBase.get_next`).
        """

        _num_batches: int | None
        _orch_is_shared = False
        """Several workers train on the data."""
        _orch_num_batches: int | None = None
        _orch_is_even = False
        """All parts of all batches have the same number of rows (see `steps`)."""

        def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
            with data.arrays_in_one_order(distribute_strategy, kwargs.get("shuffle")):
                super().__init__(distribute_strategy, *args, **kwargs)
            is_fit = "class_weight" in kwargs  # and not `evaluate` or `predict`
            self._orch_is_shared = is_wanted(distribute_strategy)
            if self._orch_is_shared:
                self._agree(distribute_strategy, is_fit=is_fit)
            elif is_fit:
                tell_of_other_scope(distribute_strategy)

        def _agree(self, strategy: Any, *, is_fit: bool) -> None:
            own = data.steps_of_epoch(self._num_batches, self._distributed_dataset, strategy)
            rows = data.rows_of_parts(self._distributed_dataset, strategy)
            told = [-1 if own is None else int(own), data.fingerprint(self._distributed_dataset), rows]
            counts, fingerprints, parts = strategy.gather(tf.constant([told], tf.int64), axis=0).numpy().T
            self._orch_is_even = bool(rows > 0 and (parts == rows).all())
            self._orch_num_batches = self._num_batches = int(counts.max()) if counts.min() >= 0 else None
            data.warn_of_other_data(fingerprints)
            if is_fit:
                tell_of_right_scope()
                if self.num_batches is None:
                    data.tell_of_one_step_more(self._distributed_dataset)

        def reset(self) -> None:
            super().reset()
            if self._orch_is_shared:
                self._num_batches = self._orch_num_batches

        def _get_iterator(self) -> Any:
            made = super()._get_iterator()
            if self._orch_is_even:
                made = iter(made)
                made._orch_is_even = True
            return made

    return EpochIterator


def tell_of_other_scope(strategy: Any) -> None:
    """Say that a `fit` under this strategy trains in each worker by itself, in a cluster whose workers train together."""
    global _is_apart
    is_alone = strategy is not None and strategy.num_replicas_in_sync < 2
    if is_alone and strategy_builder.input_pipelines(context())[0] > 1 and _has_strategy():
        print_once(
            "fit trains a model that was made outside of the scope of a strategy: each worker trains one of its own on all of the data, "
            "and the workers end with different weights; make and compile the model inside of `with strategy.scope():`"
        )
        if not _is_apart:
            _is_apart = True
            reports.note(task_files.APART)


def tell_of_right_scope() -> None:
    """A `fit` trains in all workers together. The remark at the end of the run is about the last `fit`: one before may be a baseline."""
    global _is_apart
    if _is_apart:
        _is_apart = False
        reports.note(task_files.APART, False)


def _has_strategy() -> bool:
    """Whether the program has made the strategy of the workers. Where it has made none, the end of the run says that none was formed."""
    made = sys.modules["tensorflow.python.eager.context"].context()
    return getattr(made, "_collective_ops_server_def", True) is not None
