"""`worker.distribute`: divides a dataset, or the dataset of a function, as the spec says, under any strategy."""

from __future__ import annotations

import itertools
from typing import Any

from ...values.codec import to_json
from ...values.words import count_of
from ..context import Context, context
from ..patches.import_hooks import print_once
from ..strategy import strategy_builder
from . import input_counter, input_policy, private_memory, shuffle_order
from .input_policy import Changes

_jobs = itertools.count(1)
"""The number of datasets that this process has sent to the tf.data service."""


def distribute(source: Any, *, batch: int | bool | None, strategy: Any, options: Any, data_service: bool) -> Any:
    import tensorflow as tf

    is_dataset = isinstance(source, tf.data.Dataset)
    if not is_dataset and not callable(source):
        raise TypeError(
            f"worker.distribute takes a tf.data.Dataset or a function, and not {type(source).__name__}. "
            "fix: tf.data.Dataset.from_tensor_slices makes a dataset of arrays"
        )
    private_memory.copy_soon()
    task, changes = context(), Changes("worker.distribute")
    if strategy is None:
        strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy_builder.current()
    settings: dict[str, Any] = to_json(task.settings.input)
    is_coordinated = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    # A strategy has only one coordinator (`ClusterCoordinator.__new__` in tensorflow/python/distribute/coordinator).
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy) if is_coordinated else None
    if coordinator is None:
        input_counter.begin()
    else:
        settings.pop("auto_shard", None)
        name = type(strategy).__name__.removesuffix("V2")
        print_once(f"input: under {name} each worker reads the whole dataset. fix: shuffle it, repeat it, and count the steps")
    if is_dataset:
        source = _batched(source, batch, strategy, task, changes)
    if is_dataset and data_service and task.data_service is not None:
        source = _through_service(source, task)
        settings.pop("auto_shard", None)  # the service divides the dataset; TensorFlow turns its own sharding off
    elif task.data_service is not None and not is_dataset:
        what = "datasets from a function do not use the tf.data service; worker.context().data_service is its address"
        print_once(f"input: {what}", is_note=True)
    source, options = input_policy.apply(source, options, strategy, settings, changes)
    if is_dataset:
        source = shuffle_order.in_one_order(source, strategy)
        distributed = input_policy.original("experimental_distribute_dataset")(strategy, source, options)
        return distributed if coordinator is None else coordinator.create_per_worker_dataset(distributed)

    def make() -> Any:
        return input_policy.original("distribute_datasets_from_function")(strategy, source, options)

    # The function has an InputContext of its own on each worker.
    return make() if coordinator is None else coordinator.create_per_worker_dataset(make)


def has_start(data: Any) -> bool:
    """True if a distributed dataset is one of `worker.files` that leaves out the batches before its `start`."""
    dataset = getattr(data, "_original_dataset", data)
    dataset = getattr(dataset, shuffle_order.COPIED, dataset)
    return hasattr(dataset, "_inputs") and any(getattr(part, input_policy.START, 0) for part in shuffle_order.parts(dataset))


# --- batches -----------------------------------------------------------------------------------------


def _batched(dataset: Any, batch: int | bool | None, strategy: Any, task: Context, changes: Changes) -> Any:
    given = None if isinstance(batch, bool) else batch
    size = given or task.settings.input.global_batch_size
    replicas, found = strategy.num_replicas_in_sync, _batch_size(dataset)
    if batch is False or (found is not None and given is None):
        if found and size not in (None, found):
            changes.told.append(f"the dataset comes in batches of {found}, and is not batched by {size}, the global_batch_size")
        _check_size(found or replicas, replicas)
        return dataset
    if size is None:
        return dataset
    if size < replicas:
        raise ValueError(
            f"worker.distribute: a global batch of {size} for {count_of(replicas, 'replica')}: some would never get an element. "
            f"fix: make it {replicas} or more (input.global_batch_size, --global-batch-size)"
        )
    _check_size(size, replicas)
    changes.told.append(f"batches of {size} for {count_of(replicas, 'replica')}")
    return dataset.batch(size, drop_remainder=bool(task.settings.input.drop_remainder))


def _batch_size(dataset: Any) -> int | None:
    """The size of the dataset's batches, from its Python objects; 0: unknown; None: the dataset has no batches.

    TensorFlow's `compute_batch_size` knows less: it does not know the result of a `map` after a `batch`.
    """
    while True:
        name = type(dataset).__name__
        if "Unbatch" in name:
            return None
        if "Batch" in name or "GroupByWindow" in name:
            return int(getattr(dataset, "_batch_size", 0))
        inputs = dataset._inputs()
        if "DirectedInterleave" in name:  # sample_from_datasets, choose_from_datasets: a selector, then datasets of elements of one shape
            sizes = {_batch_size(one) for one in inputs[1:]} - {None}
            return sizes.pop() if len(sizes) == 1 else 0 if sizes else None
        if not inputs or "FlatMap" in name or "Interleave" in name:  # the elements come from datasets that a function makes
            return None
        dataset = inputs[0]


def _check_size(size: int, replicas: int) -> None:
    if size < replicas:
        print_once(f"input: a batch of {size} for {replicas} replicas: {replicas - size} of them get empty batches in every step")
    elif size % replicas:
        print_once(f"input: a batch of {size} for {replicas} replicas cannot be divided evenly: their batches differ in size by one")


# --- the tf.data service -------------------------------------------------------------------------------


def _through_service(dataset: Any, task: Context) -> Any:
    """The dataset, made by the data workers. Each element goes to one training worker, whichever asks first."""
    import tensorflow as tf

    service = tf.data.experimental.service
    print_once(
        "input: data workers make the batches, and the first worker that asks gets one; py_function does not work there", is_note=True
    )
    # All workers name their datasets in the same order: the same name is the same job.
    name = f"worker.distribute-{task.attempt}-{next(_jobs)}"
    return dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, task.data_service, job_name=name))
