"""What a training script may ask of orch. Everything here also works in a script that is run by hand.

    import worker

    strategy = worker.strategy()             # the cluster's strategy, built the right way
    if worker.context().is_chief: ...        # who am I
    batches = worker.distribute(dataset)     # shared out as the spec says
    worker.report(step=step, loss=loss)      # progress, for `orch ps`

Importing this module imports nothing but the standard library; TensorFlow is imported when it is needed.
"""

from __future__ import annotations

from typing import Any, NoReturn

from .task.context import Context, context

__all__ = ["Context", "context", "distribute", "report", "serve", "strategy"]


def strategy() -> Any:
    """The `tf.distribute.Strategy` that this run was started with. Called again, it returns the same object.

    NOTE: under ``parameter_server`` this call DOES NOT RETURN in ``worker`` and ``ps`` tasks. They become
    servers (see `serve`) until they are stopped, so that one script serves all roles; only the chief, and
    an evaluator, run the lines below the call.

    Call it before any TensorFlow operation: collectives "must be configured at program startup".
    `multi_worker_mirrored` needs all workers to be up, and waits for them.

    Run by hand, without orch: `tf.distribute.get_strategy()`, or what a pasted TF_CONFIG asks for
    (``ps`` tasks: parameter servers; several workers: multi-worker mirrored).

    Raises ValueError for an invalid TF_CONFIG, and for a strategy that is not known.
    """
    from .task import strategies

    return strategies.current()


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
    from .task import distribute as module

    return module.distribute(dataset, batch=batch, strategy=strategy, options=options, data_service=data_service)


def serve() -> NoReturn:
    """Run this task's `tf.distribute.Server`, for ``worker`` and ``ps`` tasks under `parameter_server`.

    Never returns: TensorFlow's servers do not end by themselves, and are stopped when the chief is done.
    Raises ValueError if there is no valid TF_CONFIG.
    """
    from .task import serve as module

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
