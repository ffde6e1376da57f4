"""Keras 3's `fit` under MultiWorkerMirroredStrategy with several workers: replaces the functions of Keras that fail.

These fail, in keras/src/backend/tensorflow/trainer.py (keras#20585; every Keras from 3.3 to 3.15):

* `_maybe_symbolic_build` reduces a batch, a structure of `PerReplica` values, with a method for single values.
* `_make_function` makes a function that reduces scalars along an axis, which scalars do not have (see `steps`).
* Each worker counts the batches of its own data, so a worker with fewer batches leaves an epoch that the other workers continue.

The replacements work only for this strategy: under every other strategy, and with one worker, Keras's own functions run (but see
`_is_last_worker`). A Keras with functions that orch does not know stays unchanged, and a line on stderr says so.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any

from ...protocol import task_files
from ...tensorflow_facts.releases import INSTALL_KERAS, KNOWN_KERAS, OLDEST_TENSORFLOW
from .. import reports
from ..context import context
from ..import_hooks import print_once, replace
from ..input import input_policy
from ..strategy import strategy_builder
from . import data

_is_apart = False
"""A `fit` of this process has trained a model outside of the scope."""

TRAINER = "keras.src.backend.tensorflow.trainer"
"""The module of Keras 3 that has `fit`; it is imported if TensorFlow is Keras's backend."""
KNOWN = {
    "TensorFlowTrainer._maybe_symbolic_build": (
        "181752273e37",  # 3.10
        "92a504f5eba9",  # 3.11 to 3.15
    ),
    "TensorFlowTrainer._make_function": (
        "55eb952812ca",  # 3.10 and 3.11
        "bb33b7a0da3d",  # 3.12 to 3.15
    ),
    "TensorFlowTrainer.make_predict_function": (
        "5f1a30acee30",  # 3.10 and 3.11
        "a772a2efdd90",  # 3.12 to 3.15
    ),
    "reduce_per_replica": ("2e7d54b1e6ed",),  # 3.10 to 3.15
    "optimizers_module.Optimizer.apply": ("43097be63b91",),  # 3.10 to 3.15
    "optimizers_module.Optimizer._backend_apply_gradients": ("48d6e24d5803",),  # 3.10 to 3.15
    "optimizers_module.Optimizer._backend_update_step": ("00bd759c099a",),  # 3.5 to 3.15
    "optimizers_module.Optimizer._all_reduce_sum_gradients": (
        "dd8896fa68d7",  # 3.3 to 3.13
        "953512efa56c",  # 3.14 and 3.15
    ),
    "optimizers_module.Optimizer._overwrite_model_variables_with_average_value": ("e4c579104f45",),  # 3.3 to 3.15
    "optimizers_module.LossScaleOptimizer._tf_apply": ("e702c4db1a06",),  # 3.3 to 3.15
    "optimizers_module.LossScaleOptimizer._stateful_handle_finite_grads": (
        "d71c9b456fb3",  # 3.10 and 3.11
        "6e4577e03d1e",  # 3.12 to 3.15
    ),
    "loss_module.reduce_values": ("60b046214772",),  # 3.8 to 3.15
    "metrics_module.Metric.add_variable": ("3bc628b9d872",),  # 3.10 to 3.15
}
"""The functions that are replaced, or on whose order a replacement relies (`_backend_apply_gradients`, `_tf_apply`), each with the first
digits of the SHA-256 of its source in the tested versions of Keras. The last function is not replaced: it identifies older versions, which
are wrong under every strategy with replicas. Keras 3.3 to 3.7 add up the gradients of the replicas, and until 3.9 a loss or metric is that
of some replicas only."""


def is_wanted(strategy: Any) -> bool:
    """Whether orch's functions are used under a strategy: MultiWorkerMirroredStrategy with several workers, and a Keras that orch knows."""
    extended: Any = getattr(strategy, "extended", None)
    has_others = type(extended).__name__ == "CollectiveAllReduceExtended" and bool(extended._in_multi_worker_mode())
    return has_others and _is_known_or_said()


@functools.cache
def is_known() -> bool:
    """Whether orch knows the functions of Keras that it replaces. Their sources are read at the first need."""
    try:
        return all(_fingerprint(operator.attrgetter(name)(sys.modules[TRAINER])) in known for name, known in KNOWN.items())
    except (AttributeError, OSError, TypeError):  # a function that is missing, or has no source
        return False


@functools.cache
def _is_known_or_said() -> bool:
    if not is_known():
        version = getattr(sys.modules.get("keras"), "__version__", "")
        print(
            f"orch: fit() of Keras {version} is left as it is, and may fail with several workers: orch knows {KNOWN_KERAS}; "
            f"{INSTALL_KERAS}, which works with TensorFlow {OLDEST_TENSORFLOW} and newer; "
            "or take --keras legacy (tf-keras) or a training loop of your own",
            file=sys.stderr,
        )
    return is_known()


def _fingerprint(function: Any) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a function's source, or of the function that it replaces."""
    import hashlib  # rarely needed, as the next import
    import inspect

    return hashlib.sha256(inspect.getsource(function).rstrip("\n").encode() + b"\n").hexdigest()[:12]


def mend(trainer: Any) -> None:
    """Replace the functions that fail in the module of Keras's trainer. A replacement calls the original where it is not wanted."""
    replace(trainer.TensorFlowTrainer, "_maybe_symbolic_build", _build)
    replace(trainer.TFEpochIterator, "__init__", _begin_to_iterate)
    replace(trainer.TFEpochIterator, "reset", _reset)
    replace(trainer.TFEpochIterator, "_get_iterator", _iterator)
    replace(trainer.TensorFlowTrainer, "predict", data.predict_in_order)


def name_parts(trainer: Any) -> None:
    """Have a line printed where several replicas of one process, as under MirroredStrategy, get parts of different size."""

    def begin_to_iterate(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        strategy: Any = args[0] if args else kwargs.get("distribute_strategy")
        replicas = getattr(strategy, "num_replicas_in_sync", 1)
        if replicas > 1 and is_known():
            data.warn_of_uneven_parts(self._distributed_dataset, self.data_adapter, replicas)

    def predict_on_batch(real: Any, self: Any, x: Any) -> Any:
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and is_known():
            print_once(f"predict_on_batch: Keras gives the batch to each of the {replicas} replicas, and returns each row {replicas} times")
        return real(self, x)

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        is_divided = self.distribute_strategy.num_replicas_in_sync > 1 and is_known()
        others = _no_means(self) if is_divided else []
        if is_divided:
            tell_of_circle(self)
        if others:
            print_once(
                f"the metric {others[0]!r} is no mean over rows: what Keras shows of single batches is the mean of the replicas' own "
                "values, and not the value of one process; at the end of an epoch it is the value of one process"
            )
        return real(self, *args, **kwargs)

    replace(trainer.TFEpochIterator, "__init__", begin_to_iterate)
    replace(trainer.TensorFlowTrainer, "predict_on_batch", predict_on_batch)
    replace(trainer.TensorFlowTrainer, "fit", fit)


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
    if not (hasattr(getattr(strategy, "extended", None), "_in_multi_worker_mode") and is_known()):
        return False
    if input_policy.is_elastic() or getattr(strategy, strategy_builder.BUILT_HERE, False):
        return True
    data.tell_of_second_order(iterator)
    return False


def _of_first_replica(spec: Any) -> Any:
    """The spec of the first replica's values: a `PerReplicaSpec` (TensorFlow) has one for each replica of this worker."""
    parts = getattr(spec, "_value_specs", None)
    return parts[0] if parts else spec


def _begin_to_iterate(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Make each epoch as long as that of the worker with the most batches: TensorFlow gives the other workers empty batches
    (tensorflow/python/distribute/input_lib.py, `DistributedIteratorBase.get_next`).
    """
    import tensorflow as tf

    strategy: Any = args[0] if args else kwargs.get("distribute_strategy")
    with data.arrays_in_one_order(strategy, kwargs.get("shuffle")):
        real(self, *args, **kwargs)
    if is_wanted(strategy):
        own = data.steps_of_epoch(self._num_batches, self._distributed_dataset, strategy)
        rows = data.rows_of_parts(self._distributed_dataset, strategy)
        told = [-1 if own is None else int(own), data.fingerprint(self._distributed_dataset), rows]
        counts, fingerprints, parts = strategy.gather(tf.constant([told], tf.int64), axis=0).numpy().T
        self._orch_is_even = bool(rows > 0 and (parts == rows).all())
        self._orch_num_batches = self._num_batches = int(counts.max()) if counts.min() >= 0 else None
        data.warn_of_other_data(fingerprints)
        if "class_weight" in kwargs:  # of `fit`, and not of `evaluate` or `predict`
            tell_of_right_scope()
            if self.num_batches is None:
                data.tell_of_one_step_more(self._distributed_dataset)
    elif "class_weight" in kwargs:
        tell_of_other_scope(strategy)


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


def _iterator(real: Any, self: Any) -> Any:
    """An iterator that says whether all parts of all batches have the same number of rows (see `steps`)."""
    made = real(self)
    if not getattr(self, "_orch_is_even", False):
        return made
    made = iter(made)
    made._orch_is_even = True
    return made


def _reset(real: Any, self: Any) -> None:
    real(self)
    self._num_batches = getattr(self, "_orch_num_batches", self._num_batches)
