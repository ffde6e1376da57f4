"""The data of Keras 3's `fit`, `evaluate` and `predict` on several workers: how many steps an epoch has, and in which order data come.

Keras counts the batches of the dataset before TensorFlow divides it (keras/src/trainers/epoch_iterator.py). This is the number of steps
if each step takes one such batch from all workers together. Under the policy OFF each worker takes a part of its batch in each step, and
its next part in the next step, so that an epoch has as many steps for each batch as there are workers.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from .. import patches
from ..input import input_policy, shuffle_order
from ..patches.features import ORDER, WARNINGS
from ..patches.import_hooks import print_once


def steps_of_epoch(counted: int | None, distributed: Any, strategy: Any) -> int | None:
    """The number of steps until this worker's data end; None if unknown. `counted`: the number of batches that Keras has counted."""
    from tensorflow.python.data.experimental.ops import distribute

    dataset: Any = getattr(distributed, "_original_dataset", None)
    if dataset is None or _policy(dataset) != "OFF":
        return counted
    replicas, workers = int(strategy.num_replicas_in_sync), int(strategy.extended._num_workers)
    tell_of_off(distributed, f"an epoch goes {workers} times over data" if counted else f"each row comes {workers} times, of data")
    if not counted:
        return counted
    size, last = int(distribute.compute_batch_size(dataset)), 0
    if size > 0 and _static_size(dataset) is None:
        elements = _elements(dataset)
        if elements is None:
            return None
        last = elements - (counted - 1) * size
    parts = counted * replicas  # TensorFlow cuts a batch of an unknown size, or a full one, into this many parts (rebatch_dataset_op.cc)
    if 0 < last < size:
        sizes = distribute.batch_sizes_for_worker(size, workers, replicas // workers, strategy.extended._id_in_cluster).numpy()
        parts += 1 - replicas + int((sizes.cumsum() < last).sum())
    return math.ceil(parts * workers / replicas)


@patches.guarded(WARNINGS)
def tell_of_off(distributed: Any, times: str) -> None:
    """Say what the policy OFF makes of data that neither the program nor orch has divided. `times`: how often each row comes."""
    dataset: Any = getattr(distributed, "_original_dataset", None)
    if dataset is None or _policy(dataset) != "OFF":
        return
    if not any(getattr(part, input_policy.SHARED, False) for part in shuffle_order.parts(dataset)):
        print_once(f"input: under the policy OFF each worker reads all of its dataset, so {times} that the program has not divided itself")


def rows_of_parts(distributed: Any, strategy: Any) -> int:
    """The number of rows that each part has in every step, of data that never end; 0 if the data end, or if it is not certain."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute

    dataset: Any = getattr(distributed, "_original_dataset", None)
    if dataset is None or int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        return 0
    size, replicas = int(distribute.compute_batch_size(dataset)), int(strategy.num_replicas_in_sync)
    batches = dataset
    while any(part in type(batches).__name__ for part in _SAME_ROWS):
        (batches,) = batches._inputs()
    makes_them = type(batches).__name__ in ("_BatchDataset", "_ParallelBatchDataset")
    is_full = makes_them and int(batches._inputs()[0].cardinality()) == tf.data.INFINITE_CARDINALITY
    is_fixed = _static_size(dataset) == size
    return size // replicas if size > 0 and size % replicas == 0 and (is_full or is_fixed) else 0


@patches.guarded(WARNINGS)
def warn_of_uneven_parts(distributed: Any, adapter: Any, replicas: int, is_trained: bool = True) -> None:
    """Say that Keras's own step differs from that of one process where the replicas get parts of different size. `distributed`: the
    dataset that Keras 3 or Keras 2 has divided; `adapter`: what Keras made of the program's data; `is_trained`: what is only evaluated
    gives the numbers of one process, but for a replica without rows.
    """
    from tensorflow.python.data.experimental.ops import distribute

    dataset: Any = getattr(distributed, "_original_dataset", None)
    rows: int | None
    if hasattr(adapter, "_partial_batch_size"):  # arrays
        size, last = (value() if callable(value) else value for value in (adapter.batch_size, adapter.partial_batch_size))
        size, rows = int(size), int(last or 0)
    elif dataset is not None:
        size = int(distribute.compute_batch_size(dataset))
        rows = 0 if _static_size(dataset) else _elements(dataset)
    else:
        return
    why = ["Keras gives all parts of a batch the same weight, so losses and weights differ from those of one process"] if is_trained else []
    if size <= 0 or rows is None:
        if why:
            uneven = f"a batch whose rows {replicas} replicas cannot share evenly, such as a last one, gives parts of different size"
            print_once(f"{uneven}. For such a batch, {why[0]}")
    elif size % replicas or rows % size % replicas:
        last = f", the last one of {rows % size}," if rows % size else ""
        if 0 < rows % size < replicas:
            why.append("what is a mean over the rows of a replica that gets none is NaN")
        if why:
            where = "In this training" if is_trained else "In an evaluation"
            print_once(f"batches of {size}{last} give {replicas} replicas parts of different size. {where}, {'; '.join(why)}")


def _policy(dataset: Any) -> str:
    return str(dataset.options().experimental_distribute.auto_shard_policy.name)


def _static_size(dataset: Any) -> int | None:
    """The size of all batches; None if one may be smaller."""
    import tensorflow as tf

    sizes = [spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if getattr(spec, "shape", None)]
    return None if not sizes or sizes[0] is None else int(sizes[0])


_SAME_NUMBER = ("Map", "Prefetch", "Options", "Shuffle", "Cache")
"""Parts of the names of datasets that have as many elements as their input."""
_SAME_ROWS = ("Prefetch", "Options", "Shuffle", "Cache", "Repeat")
"""Parts of the names of datasets whose elements are those of their input. (A `map` may leave rows out.)"""


def _elements(dataset: Any) -> int | None:
    """The number of elements in all batches of a dataset that makes its batches last; None if unknown."""
    name = type(dataset).__name__
    while any(part in name for part in _SAME_NUMBER) and not any(part in name for part in ("FlatMap", "Batch")):
        (dataset,) = dataset._inputs()
        name = type(dataset).__name__
    found = int(dataset._inputs()[0].cardinality()) if "BatchDataset" in name and "Map" not in name else -1
    return found if found >= 0 else None


@patches.guarded(WARNINGS)
def tell_of_one_step_more(distributed: Any, optimizer: Any) -> None:
    """Say that Keras in one process counts a step without data at the end of each epoch, if the optimizer uses the number of steps."""
    import tensorflow as tf

    dataset: Any = getattr(distributed, "_original_dataset", None)
    is_endless = dataset is not None and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    if not is_endless and _computes_with_steps(optimizer):
        print_once(
            "fit: the length of the dataset is unknown, so this optimizer (Adam, a schedule) counts fewer steps than one process. "
            "fix: dataset.apply(tf.data.experimental.assert_cardinality(BATCHES)). more: orch help keras"
        )


def _computes_with_steps(optimizer: Any) -> bool:
    """True if the number of steps matters: a schedule, a weight decay or a moving average for each step, or an update such as Adam's."""
    from keras.optimizers.schedules import LearningRateSchedule

    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(getattr(optimizer, "_learning_rate", None), LearningRateSchedule):
        return True
    if getattr(optimizer, "weight_decay", None) or getattr(optimizer, "use_ema", False):
        return True
    try:
        return "iterations" in inspect.getsource(type(optimizer).update_step)
    except (AttributeError, OSError, TypeError):
        return False


# --- the order of the data -----------------------------------------------------------------------------


_orders: list[Callable[..., Any]] = []
"""What shuffles in place of `tf.random.shuffle` now."""


@contextlib.contextmanager
def arrays_in_one_order(strategy: Any, shuffle: Any) -> Iterator[None]:
    """While this is entered, Keras makes datasets of arrays whose shuffle has one order in all workers, and another one in each epoch.

    Keras shuffles the numbers of the rows by `tf.random.shuffle` in the function of a `map`, which runs once in an epoch
    (keras/src/trainers/data_adapters/array_data_adapter.py, tf_keras/src/engine/data_adapter.py). The order of a program with a seed stays.
    `shuffle`: the argument of `fit`. After "batch" all workers share the rows of each batch, in whatever order these are.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    is_shared = shuffle_order.has_several_workers(strategy) or shuffle_order.is_kept()
    if not shuffle or not is_shared or context.global_seed() is not None:
        yield
        return
    epochs, seed = itertools.count(), tf.constant(shuffle_order.draw_seed("arrays"), tf.int64)

    def in_one_order(value: Any, **_: Any) -> Any:
        epoch = tf.constant(0, tf.int64) if shuffle == "batch" else tf.numpy_function(lambda: next(epochs), [], tf.int64)
        return tf.random.experimental.stateless_shuffle(value, tf.stack([seed, tf.ensure_shape(epoch, [])]))

    # Below `tf.random.shuffle`: tf_keras has another module of this name (`tensorflow.compat.v2`).
    patches.replace(ORDER, "random_shuffle", lambda real, *args, **kwargs: (_orders[-1] if _orders else real)(*args, **kwargs))
    _orders.append(in_one_order)
    try:
        yield
    finally:
        _orders.pop()


@patches.guarded(WARNINGS)
def tell_of_second_order(feed: Any) -> None:
    """Say of a generator or a shuffled dataset that Keras takes a batch of it to build the model."""
    dataset: Any = getattr(feed.distributed, "_original_dataset", None)
    is_generator = type(feed.adapter).__name__ == "GeneratorDataAdapter"
    if is_generator or (dataset is not None and shuffle_order.comes_in_other_orders(dataset)):
        begins = "after the first batches of a generator" if is_generator else "with the second order of a shuffle"
        print_once(
            f"with one worker, Keras begins {begins}, as without orch; several workers begin with the first. "
            "fix: strategy = worker.strategy()"
        )


@patches.guarded(WARNINGS)
def tell_of_validations(feed: Any) -> None:
    """Say of a generator that Keras makes a new iterator of it for each validation (keras/src/trainers/epoch_iterator.py, `reset`), which
    begins with the two batches that Keras has taken to see their form, and leaves out what the one before had read ahead."""
    if type(feed.adapter).__name__ == "GeneratorDataAdapter":
        print_once(
            "each validation begins with the generator's first 2 batches, then where Keras had read ahead. "
            "fix: give validation_data a dataset, a PyDataset or arrays"
        )


def in_order(strategy: Any, x: Any) -> Any:
    """Have each worker read all of the data and predict its share of each batch: then the predictions come in the order of the data.

    Keras 2 does so, too (`Model.predict` in tf_keras/src/engine/training.py). Under FILE the workers would predict different files, and
    under OFF each worker would predict everything.
    """
    import tensorflow as tf

    if not (shuffle_order.has_several_workers(strategy) and isinstance(x, tf.data.Dataset)):
        return x
    policy = x.options().experimental_distribute.auto_shard_policy
    if any(getattr(part, input_policy.SHARED, False) for part in shuffle_order.parts(x)):
        why = "predict: a dataset of worker.files is divided already, so the predictions would not come in the order of the data; "
        how = "make the dataset by tf.data, such as tf.data.TFRecordDataset(names).map(decode).batch(64)"
        raise patches.refusal(ValueError(why + how))
    policies = tf.data.experimental.AutoShardPolicy
    if policy != policies.DATA:
        if policy != policies.AUTO:
            print_once(f"predict: auto_shard data instead of {policy.name.lower()}, so that the predictions come in the order of the data")
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policies.DATA
        x = x.with_options(options)
    return x
