"""The functions of orch for training scripts. All of them also work in a script that runs without orch.

    import worker

    strategy = worker.strategy()             # the cluster's strategy, built the right way
    if worker.context().is_chief: ...        # which task is this
    dataset = worker.files("data/*.tfrecord", decode)  # this task's share of some files
    batches = worker.distribute(dataset)     # divided as the settings say
    saver = worker.checkpoints(model=model, optimizer=optimizer)  # continues a training after a restart
    worker.report(step=step, loss=loss)      # progress, for `orch ps`
    image = worker.split(image, [1, 2, 4, 1])  # over the devices of a TPU's replica; without a TPU, the tensor stays whole

Importing this module imports only parts of the standard library; TensorFlow is imported when a function needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from .task.checkpoints.keras_saves import KerasCheckpoint as KerasCheckpoint
    from .task.checkpoints.saver import Saver
    from .task.context import Context as Context
    from .task.strategy.tpu_errors import NoTpu as NoTpu
    from .task.strategy.tpu_errors import TpuError as TpuError

__all__ = [
    *("Context", "KerasCheckpoint", "NoTpu", "TpuError"),
    *("assign", "checkpoints", "context", "distribute", "files", "replicate", "report", "serve", "split", "strategy"),
]


def __getattr__(name: str) -> Any:
    """The classes of this module, each imported when a script uses it."""
    if name == "Context":
        from .task.context import Context

        return Context
    if name == "KerasCheckpoint":
        from .task.checkpoints.keras_saves import KerasCheckpoint

        return KerasCheckpoint
    if name in ("NoTpu", "TpuError"):
        from .task.strategy import tpu_errors

        return getattr(tpu_errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _wait_for_keras() -> None:
    """Wrap Keras's `fit` before a script takes it from a model: ``model.fit(callbacks=[worker.KerasCheckpoint()])`` takes it first."""
    from .task import patches
    from .task.patches.features import LOOPS

    def wrap(keras: Any) -> None:
        from .task.keras import loops

        (loops.mend if keras.__name__ == "keras" else loops.wrap_keras_2)()

    for package in ("keras", "tf_keras"):
        patches.after(LOOPS, package, wrap)


_wait_for_keras()


def context() -> Context:
    """Return this task, its cluster and its run. Without orch: a chief without other tasks, or the task of a TF_CONFIG of your own.

    Raises ValueError if TF_CONFIG, or a variable that orch sets, is not valid.
    """
    from .task import context as module

    return module.context()


def strategy() -> Any:
    """Return the `tf.distribute.Strategy` of this run. Each call returns the same object.

    NOTE: under ``parameter_server`` this call DOES NOT RETURN in ``worker`` and ``ps`` tasks: they become servers (see `serve`).
    Only the chief and an evaluator run the lines below the call.

    Call this function before any TensorFlow operation: collectives "must be configured at program startup". Under
    ``multi_worker_mirrored``, the call waits until all workers are up. An evaluator gets a strategy for its own devices. Under ``tpu``,
    it finds, connects and initialises the TPU. Without orch: `tf.distribute.get_strategy()`, or the strategy for a TF_CONFIG of your own.

    Raises ValueError for an invalid TF_CONFIG or an unknown strategy; `NoTpu` if there is no TPU; `TpuError` if the layout does not fit it.
    """
    from .task.strategy import strategy_builder, tpu_errors

    try:
        return strategy_builder.current()
    except tpu_errors.TpuError as error:
        raise error.with_traceback(None) from None  # the message says everything


def split(tensor: Any, dims: Sequence[int] | str) -> Any:
    """Split a tensor over the logical devices of each replica, in the function that `strategy.run` runs on a TPU. Return the tensor.

    `dims`: the number of equal parts of each dimension, such as ``[1, 2, 4, 1]``, or a name in ``tpu.partition``. If a replica has one
    device, as on a laptop, the tensor stays whole, and orch prints a warning.

    Calls TensorFlow's `experimental_split_to_logical_devices`, and raises ValueError for each broken rule, on a laptop too: one number for
    each dimension; each divides the size of its dimension; their product is the number of logical devices of a replica.
    """
    from .task.strategy import logical_devices

    return logical_devices.split(tensor, dims)


def replicate(tensor: Any) -> Any:
    """Return the tensor, whole on every logical device of its replica (`experimental_replicate_to_logical_devices`). See `split`."""
    from .task.strategy import logical_devices

    return logical_devices.replicate(tensor)


def assign(tensor: Any, device: int) -> Any:
    """Return the tensor, on one logical device of its replica, counted from 0 (`experimental_assign_to_logical_device`). See `split`.

    Raises ValueError if a replica has no such device, and, as TensorFlow does, under `tpu.spmd`.
    """
    from .task.strategy import logical_devices

    return logical_devices.assign(tensor, device)


# These functions are called while a graph is traced. AutoGraph does not translate a function with this attribute
# (`is_autograph_artifact` in tensorflow/python/autograph/impl/api.py).
for _function in (split, replicate, assign):
    setattr(_function, "autograph_info__", {})  # noqa: B010


def distribute(
    dataset: Any, *, batch: int | bool | None = None, strategy: Any = None, options: Any = None, data_service: bool = True
) -> Any:
    """Divide a dataset among the replicas of all workers, as the section ``input`` says. All tasks that train must make the same call.

    `dataset`: a `tf.data.Dataset`, or a function from a `tf.distribute.InputContext` to one. orch cuts a dataset without batches into
    batches of ``global_batch_size``, and gives each replica an equal part of each. A dataset from a function stays as it is.
    `batch`: the global batch size; False: the elements are batches already, such as those of a generator.
    `strategy`: by default the strategy of the scope around the call, or else `worker.strategy()`.
    `options`: `tf.distribute.InputOptions`. `data_service`: if there are data workers, they make the batches of a dataset.

    Returns a `tf.distribute.DistributedDataset`; without a strategy a `tf.data.Dataset`; under ParameterServerStrategy the result of
    `ClusterCoordinator.create_per_worker_dataset`, whose iterator is passed to `schedule`.

    Raises TypeError for anything but a dataset or a function, and ValueError for a global batch with fewer elements than replicas.
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
    start: int | None = None,
    shard: str | None = None,
    drop_remainder: bool | None = None,
    deterministic: bool | None = None,
    prefetch: int | None = None,
    cycle_length: int = 8,
    count: bool | None = None,
    input_context: Any = None,
) -> Any:
    """Return this task's share of some files as a `tf.data.Dataset`, for `strategy.experimental_distribute_dataset` or Keras's `fit`.

    All workers list the files in the same order. Then they divide, repeat, shuffle, read `cycle_length` at a time, decode, batch and read
    ahead, in this order. TensorFlow does not divide the dataset a second time.

    `pattern`: one or several patterns, such as ``"data/*.tfrecord"``, relative to the working directory. `decode`: maps an element.
    `reader`: ``"tfrecord"``, ``"lines"``, or a function from a file's name to a dataset. `compression`: ``"GZIP"`` or ``"ZLIB"``.
    `batch`: the global batch size, of all replicas of all workers together. `repeat`: the number of epochs; None or -1: no end.
    `shuffle`: the size of the shuffle buffer, in elements; the files are shuffled, too. 0: no shuffle. `seed`: the same order in each run.
    `start`: the number of batches that the training has taken, such as `saver.steps`. A shuffle then needs a `seed`, or
    `worker.checkpoints` before this call.
    `shard`: ``"file"``: each worker reads its own files; ``"data"``: all files, of which it keeps its share of the elements;
    ``"off"``: everything; ``"auto"``: by file if there are at least as many files as workers, else by data.
    `count`: count the elements first, which finds damaged files and gives all workers epochs of the same length. None: only if the files
    are on this host and have 1 GiB at most.
    `input_context`: for a function of `strategy.distribute_datasets_from_function`; the batches are then those of one replica.

    Defaults come from the section ``input``.

    Raises FileNotFoundError if no file fits; ValueError for a batch with fewer elements than replicas, fewer files than workers under
    ``"file"``, files without elements, a damaged TFRecord file (with the byte), and for arguments that do not fit together.
    """
    arguments = dict(locals())
    from .task.input import file_dataset

    return file_dataset.dataset(**arguments)


def checkpoints(
    checkpoint: Any = None,
    /,
    *,
    every: int | None = None,
    keep: int | None = None,
    dir: str | None = None,
    strategy: Any = None,
    **objects: Any,
) -> Saver:
    """Save a training loop of your own, so that a restart continues it: this call restores the newest checkpoint, if there is one.

    All workers make this call, and the calls of the saver that it returns::

        saver = worker.checkpoints(model=model, optimizer=optimizer, every=100)
        for epoch in saver.epochs(3):
            for batch in saver.batches(dataset):  # after a restart: what is left of the epoch
                loss = train_step(batch)
                saver.step(loss=loss)             # saves after every 100 steps, and reports as worker.report does

    `objects`: variables, models, layers, optimizers, metrics, generators of random numbers and modules, by any names; or one
    `tf.train.Checkpoint` of these. The models must be built. Optimizers are built here, if there is one model.
    `every`: steps between two checkpoints (``checkpoints.every``, or 100). `keep`: how many stay (``checkpoints.keep``, or 3).
    `dir`: their directory, which all workers see (``checkpoints.dir``, or the run directory).
    `strategy`: by default that of the scope, that of `worker.strategy`, or that in whose scope the variables were made.

    Under ParameterServerStrategy the chief makes this call, and calls `saver.step` for each step that it has scheduled.

    Raises ValueError for a checkpoint of another model, for an object that cannot be saved, and if no directory is known; RuntimeError if
    some workers do not see the checkpoints of the others.
    """
    from .task.checkpoints.saver import Saver

    return Saver({**({"": checkpoint} if checkpoint is not None else {}), **objects}, every=every, keep=keep, dir=dir, strategy=strategy)


def serve() -> NoReturn:
    """Run this task's `tf.distribute.Server`, for ``worker`` and ``ps`` tasks under `parameter_server`.

    Never returns: TensorFlow's servers do not end by themselves. orch stops them when the chief is done.
    Raises ValueError if there is no valid TF_CONFIG.
    """
    from .task.strategy import servers

    servers.serve()


def report(**values: Any) -> None:
    """Report the progress of this task: ``worker.report(step=100, loss=0.25)``.

    Values are numbers, texts, booleans, None, lists and dicts of these, and objects with one number, such as a scalar of NumPy or
    TensorFlow. A text ``nan``, ``inf`` or ``-inf`` counts as the number. orch adds the time as ``at``. With ``of``, the last step of the
    whole training, `orch ps` shows how far it is, and the time left. Outside orch, this function does nothing.

    The function is fast enough for the innermost loop: a report within 0.1 s of the last written one is held back, and replaced by later
    ones. A process that is killed loses it. If the file cannot be written, orch prints a warning; the function does not raise.

    Raises TypeError for a value of another kind, and for a value named ``at``; ValueError for more than 64 KiB.
    """
    from .task.observe import reports

    reports.report(values)
