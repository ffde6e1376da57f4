"""What a training script may ask of orch. Everything here also works in a script that is run by hand.

    import worker

    strategy = worker.strategy()             # the cluster's strategy, built the right way
    if worker.context().is_chief: ...        # who am I
    dataset = worker.files("data/*.tfrecord", decode)  # this task's share of some files
    batches = worker.distribute(dataset)     # shared out as the spec says
    worker.report(step=step, loss=loss)      # progress, for `orch ps`
    image = worker.split(image, [1, 2, 4, 1])  # over the devices of a TPU's replica; elsewhere the tensor stays whole

Importing this module imports nothing but the standard library; TensorFlow is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from .task.context import Context as Context
    from .task.strategy.tpu_strategy import NoTpu as NoTpu
    from .task.strategy.tpu_strategy import TpuError as TpuError

__all__ = ["Context", "NoTpu", "TpuError", "assign", "context", "distribute", "files", "replicate", "report", "serve", "split", "strategy"]


def __getattr__(name: str) -> Any:
    """The classes of this module, each imported when a script uses it."""
    if name == "Context":
        from .task.context import Context

        return Context
    if name in ("NoTpu", "TpuError"):
        from .task.strategy import tpu_strategy

        return getattr(tpu_strategy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def context() -> Context:
    """Who this task is. In a script run by hand: a lone chief, or what a pasted TF_CONFIG says.

    Raises ValueError if TF_CONFIG, or a variable that orch sets, is not valid; the message says what is wrong.
    """
    from .task import context as module

    return module.context()


def strategy() -> Any:
    """The `tf.distribute.Strategy` that this run was started with. Called again, it returns the same object.

    NOTE: under ``parameter_server`` this call DOES NOT RETURN in ``worker`` and ``ps`` tasks. They become
    servers (see `serve`) until they are stopped, so that one script serves all roles; only the chief, and
    an evaluator, run the lines below the call.

    Call it before any TensorFlow operation: collectives "must be configured at program startup".
    `multi_worker_mirrored` needs all workers to be up, and waits for them.

    Run by hand, without orch: `tf.distribute.get_strategy()`, or what a pasted TF_CONFIG asks for
    (``ps`` tasks: parameter servers; several workers: multi-worker mirrored).

    `tpu`: finds the TPU, connects to it and initialises it; the options come from the section `tpu` of the spec.

    Raises ValueError for an invalid TF_CONFIG, and for a strategy that is not known; `NoTpu` where there is no TPU; `TpuError` where the
    layout of the spec does not fit on it (both are RuntimeErrors): the message says what was looked for.
    """
    from .task.strategy import strategy_builder

    try:
        return strategy_builder.current()
    except strategy_builder.Unavailable as error:
        raise error.with_traceback(None) from None  # the message says it all


def split(tensor: Any, dims: Sequence[int] | str) -> Any:
    """The same tensor, split over the logical devices of each replica; for the function that `strategy.run` runs on a TPU.

    `dims`: into how many equal parts each dimension is split, such as ``[1, 2, 4, 1]``, or the name of one of the spec's `tpu.partition`.
    Where a replica has one device, as on a laptop, the tensor is given back as it is, and one line on stderr says so.

    TensorFlow's `experimental_split_to_logical_devices`, whose rules are checked first, on a laptop too: raises ValueError with a sentence
    for each rule that is broken. The list has one number for each dimension of the tensor; each number divides the known size of its
    dimension; the product of the numbers is the number of logical devices of a replica (on a laptop that of `tpu.computation_shape`).
    """
    from .task.strategy import logical_devices

    return logical_devices.split(tensor, dims)


def replicate(tensor: Any) -> Any:
    """The same tensor, whole on every logical device of its replica (`experimental_replicate_to_logical_devices`). See `split`."""
    from .task.strategy import logical_devices

    return logical_devices.replicate(tensor)


def assign(tensor: Any, device: int) -> Any:
    """The same tensor, on one logical device of its replica, counted from 0 (`experimental_assign_to_logical_device`). See `split`.

    Raises ValueError if a replica has no such device, and, as TensorFlow does, under `tpu.spmd`.
    """
    from .task.strategy import logical_devices

    return logical_devices.assign(tensor, device)


# These are called while a graph is traced. AutoGraph calls what has this attribute as it is, without translating it
# (`is_autograph_artifact` in tensorflow/python/autograph/impl/api.py).
for _function in (split, replicate, assign):
    setattr(_function, "autograph_info__", {})  # noqa: B010


def distribute(
    dataset: Any, *, batch: int | bool | None = None, strategy: Any = None, options: Any = None, data_service: bool = True
) -> Any:
    """Share a dataset out among the replicas of all workers, as the spec's ``input:`` says: call it alike in every task.

    `dataset`: a `tf.data.Dataset`, or a function that is given a `tf.distribute.InputContext` and returns one. A dataset is cut into
    batches of the spec's ``global_batch_size``, if it does not come in batches yet (``batch=64``: of 64, whatever the spec says;
    ``batch=False``: its elements are batches already, such as those of a generator), and each replica gets an equal part of each batch.
    What a function returns is left as it is: it makes batches of ``context.get_per_replica_batch_size(...)`` and shares them out itself.

    Returns what the strategy gives to iterate over: a `tf.distribute.DistributedDataset`; without a strategy a `tf.data.Dataset`; under
    ParameterServerStrategy what `ClusterCoordinator.create_per_worker_dataset` gives, whose iterator is passed to `schedule`.

    `strategy`: by default that of the scope around the call, or else `worker.strategy()`. `options`: `tf.distribute.InputOptions` in place
    of the spec's. Where the spec has data workers, they make the batches of a dataset, unless `data_service` is False.

    Raises TypeError for anything else than a dataset or a function, and ValueError for a global batch of fewer elements than replicas.
    docs/input.md says what takes effect under which strategy.
    """
    from .task.input import distribute as module

    return module.distribute(dataset, batch=batch, strategy=strategy, options=options, data_service=data_service)


def files(
    pattern: str | os.PathLike[str] | Sequence[str] | None = None,
    decode: Callable[..., Any] | None = None,
    *,
    reader: str | Callable[[Any], Any] = "tfrecord",
    compression: str = "",
    batch: int | None = None,
    repeat: int | None = 1,
    shuffle: int = 0,
    seed: int | None = None,
    start: int = 0,
    shard: str | None = None,
    drop_remainder: bool | None = None,
    deterministic: bool | None = None,
    prefetch: int | None = None,
    cycle_length: int = 8,
    count: bool | None = None,
    input_context: Any = None,
) -> Any:
    """This task's share of some files as a `tf.data.Dataset`, for `strategy.experimental_distribute_dataset` or Keras's `fit`.

    The files are listed in the same order everywhere, shared out, repeated, shuffled, read `cycle_length` at a time, decoded, batched and
    read ahead, in this order. TensorFlow does not share the dataset out a second time (its `AutoShardPolicy` is OFF).

    `pattern`: one or several, such as ``"data/*.tfrecord"``; a relative one starts at the working directory. `decode`: maps an element.
    `reader`: ``"tfrecord"``, ``"lines"``, or a function that makes a dataset of a file's name. `compression`: ``"GZIP"`` or ``"ZLIB"``.
    `batch`: the global batch size, of all replicas of all workers together. `repeat`: how many epochs; None or -1: for ever.
    `shuffle`: so many elements wait to be drawn from; the files are then taken in a new order in each epoch, too. 0: neither. `seed`:
    the same order in each run; without one it is another in each run under ``"file"`` and ``"off"``, and that of seed 0 under ``"data"``.
    `start`: how many batches (global steps) the training has done before; the dataset goes on behind them. With a shuffle this needs a
    `seed`. `shard`: ``"file"`` (each worker reads its own files), ``"data"`` (each reads all and keeps its share), ``"off"`` (each gets
    everything), or ``"auto"``: by file if there are as many files as workers, else by data. `count`: look through the files first, which
    finds damaged ones and makes all workers' epochs equally long; None: if they are on this host, and have 1 GiB at most.
    `input_context`: for a function of `strategy.distribute_datasets_from_function`; the batches are then those of one replica.

    Without the keyword, `pattern`, `batch`, `seed`, `shard`, `drop_remainder`, `deterministic` and `prefetch` are what the section
    `input` of the spec says. docs/input.md has more.

    Raises FileNotFoundError if no file fits; ValueError for a batch that is smaller than the replicas, fewer files than workers under
    ``"file"``, files without elements, a damaged TFRecord file (with the byte), and for arguments that do not fit together.
    """
    from .task.input import file_dataset

    return file_dataset.dataset(
        pattern,
        decode,
        input_context,
        reader=reader,
        compression=compression,
        batch=batch,
        repeat=repeat,
        shuffle=shuffle,
        seed=seed,
        start=start,
        shard=shard,
        drop_remainder=drop_remainder,
        deterministic=deterministic,
        prefetch=prefetch,
        cycle_length=cycle_length,
        count=count,
    )


def serve() -> NoReturn:
    """Run this task's `tf.distribute.Server`, for ``worker`` and ``ps`` tasks under `parameter_server`.

    Never returns: TensorFlow's servers do not end by themselves, and are stopped when the chief is done.
    Raises ValueError if there is no valid TF_CONFIG.
    """
    from .task.strategy import serve as module

    module.serve()


def report(**values: Any) -> None:
    """Say how far this task is: ``worker.report(step=100, loss=0.25)``.

    Values are numbers, texts, booleans, None, lists and dicts of these, and anything that holds one number, such
    as a scalar of NumPy or TensorFlow. ``at``, the time, is added. Outside orch this does nothing.

    Fit for the innermost loop: a report within 0.1 s of the last one written is kept back, and a later one takes its
    place. What was kept back is written before the next report that is not, and at the end of the process;
    it is lost in a process that is killed. A file that cannot be written (a full disk) is told once on
    stderr and never raised.

    Raises TypeError for a value of another kind, and for one named ``at``; ValueError for more than 64 KiB.
    """
    from .task import reports

    reports.report(values)
