"""The functions of Keras 3 that run steps, under MultiWorkerMirroredStrategy with several workers: `fit` and `evaluate` call these (see
`predictions` for `predict`).

Keras's own fail there (keras/src/backend/tensorflow/trainer.py): with several steps for each execution (`steps_per_execution`), they put
a distributed iterator into a loop of the graph, which TensorFlow refuses; XLA (`jit_compile=True`) cannot compile the communication
between workers; and a step cannot have an empty part (see `parts`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .. import patches
from ..patches.features import FIT, LOOPS
from ..patches.import_hooks import print_once
from . import evaluations, metrics, one_replica, parts, stops
from .fit import is_wanted
from .rows import StandingRow, count

_UNFED = "You must feed a value for placeholder tensor"
"""What TensorFlow says where several replicas of a worker make their variables in the first call of a `tf.function`."""
_BUILT_TOO_LATE = (
    "{model} makes variables in its first step, which TensorFlow cannot do with several replicas in each of several workers. "
    "fix: call the model, or layer.build(shape), before fit in the scope"
)


def mend() -> None:
    """Replace functions that a program may override. A replacement calls the original where it is not wanted."""
    patches.replace(LOOPS, "Trainer.make_train_function", functools.partial(_make, "train"))
    patches.replace(LOOPS, "Trainer.make_test_function", functools.partial(_make, "test"))


def _make(kind: str, real: Any, self: Any, force: bool = False) -> None:
    name = f"{kind}_function"
    if getattr(self, name) is not None and not force:
        return
    if is_wanted(self.distribute_strategy):
        setattr(self, name, _function(self, getattr(self, f"{kind}_step"), is_evaluation=kind == "test"))
    else:
        real(self, force)
        made = getattr(self, name)
        setattr(self, name, lambda iterator: made(getattr(iterator, "real", iterator)))


def _function(self: Any, step: Callable[[Any], Any], is_evaluation: bool) -> Callable[[Any], Any]:
    """The function that runs the steps of one execution, one after the other, and returns the logs of the last one."""
    import tensorflow as tf

    from .feed import BatchIterator

    strategy = self.distribute_strategy
    leave_out_xla(self)
    metrics.adopt(self, strategy)
    standing, wish = StandingRow(), stops.Wish()
    one_step = _one_step(self, step, standing, wish)
    even_step = _one_step(self, step, standing, wish, is_even=True)
    whole_step = _one_step(self, step, standing, wish, is_whole=True)
    first = parts.rows_of_first(self)
    next_step = in_graph(self, functools.partial(_of_next, strategy, one_step, first))
    # Endless data has no message between the workers in which their numbers of rows could travel: none is sent where the parts are even.
    next_even = in_graph(self, lambda iterator: even_step((patches.theirs(iterator.get_next), None)))
    together = _taken_together(self, step, standing, wish, first) if is_evaluation and not self.run_eagerly else None

    @patches.guarded(FIT)
    def steps(iterator: Any) -> Any:
        wish.prepare()
        # That of train_on_batch gives the same rows to all replicas.
        if not isinstance(iterator, (BatchIterator, tf.data.Iterator, tf.distribute.DistributedIterator)):
            batches = zip(range(self.steps_per_execution), iterator, strict=False)
            return [whole_step((data, None))[0] for _, data in batches][-1]
        if isinstance(iterator, BatchIterator):
            standing.prepare(iterator.of_replica())
            if together is not None and iterator.batches.evaluation is not None:
                return together.run(iterator, self.steps_per_execution)
        logs, of_iterator = None, next_even if getattr(iterator, "is_even", False) else next_step
        for _ in range(self.steps_per_execution):
            try:
                with _first_step_explained(self):
                    logs, wishes = of_iterator(getattr(iterator, "real", iterator))
                stops.hear(wishes)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break
        return logs

    return steps


def _of_next(strategy: Any, one_step: Callable[..., Any], first: Any, iterator: Any) -> Any:
    """Take the next batch, and run a step of it. `first`: see `parts.rows_of_first`."""
    import tensorflow as tf

    with parts.counting() as counted:
        data = patches.theirs(iterator.get_next)
    total = _total(strategy, data) if counted() is None else counted()
    if first is not None:
        first.assign(tf.where(first == 0, total, first))
    return one_step((data, total), None if first is None else total == first)


def _taken_together(model: Any, step: Callable[[Any], Any], standing: StandingRow, wish: stops.Wish, first: Any) -> evaluations.Steps:
    strategy, packings = model.distribute_strategy, list[metrics.Packing]()
    one_step = _one_step(model, step, standing, wish, packings=packings)

    def of_replicas(*args: Any) -> Any:
        with _first_step_explained(model):
            return one_step(*args)

    of_all = in_graph(model, lambda packed: packings[-1].unpack(strategy, packed))
    return evaluations.Steps(strategy, standing, first, of_replicas, of_all, functools.partial(in_graph, model))


@contextlib.contextmanager
def _first_step_explained(model: Any) -> Iterator[None]:
    """Raise an error that says what to do where the model makes its variables too late."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        strategy = model.distribute_strategy
        if _UNFED in str(error) and strategy.num_replicas_in_sync > strategy.extended._num_workers:
            raise patches.refusal(ValueError(_BUILT_TOO_LATE.format(model=type(model).__name__))) from None
        raise


def _one_step(
    model: Any,
    step: Callable[[Any], Any],
    standing: StandingRow,
    wish: stops.Wish,
    *,
    is_even: bool = False,
    is_whole: bool = False,
    packings: list[metrics.Packing] | None = None,
) -> Callable[..., Any]:
    """A step of all replicas from a batch and its number of rows, or None: all parts count the same. `is_even`: no part is ever smaller
    than the others, or empty. `is_whole`: each replica has all rows of the batch. It also takes whether the batch has as many rows as the
    first one (see `parts.rows_of_first`). `packings`: the batch is in an Optional, and the step gives what the last of these makes the logs
    of.
    """
    strategy = model.distribute_strategy

    def one_step(batch: Any, is_as_first: Any) -> Any:
        data, total = batch
        packing = metrics.Packing(model)
        if packings is not None:
            packings.append(packing)
            data = without_optionals(data.get_value())

        @patches.guarded(FIT)
        def of_replica(data: Any) -> Any:
            rows_of_all = parts.EVEN if is_even else total
            with metrics.counted_once(model) if is_whole else contextlib.nullcontext():
                outputs, rows = parts.run(model, step, data, rows_of_all, is_as_first, standing)
            return packing.pack(wish.read(), outputs, rows, rows_of_all)

        gathered = contextlib.nullcontext() if is_whole else metrics.rows_gathered(model)
        with one_replica.losses_scaled(model), gathered, packing.results_seen():
            packed = patches.theirs(strategy.run, of_replica, args=(data,))
            return packing.unpack(strategy, packed) if packings is None else packed

    function = in_graph(model, one_step)
    if packings is not None:
        return function
    return lambda batch, is_as_first=None: function(without_optionals(batch), is_as_first)


def without_optionals(batch: Any) -> Any:
    """Keras's datasets of generators have an Optional in place of None."""
    import tensorflow as tf
    from keras import tree

    return tree.map_structure(lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch)


def in_graph(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    function = tf.autograph.experimental.do_not_convert(patches.guarded(FIT)(function))
    called: Callable[..., Any] = patches.as_theirs(function if model.run_eagerly else tf.function(function, reduce_retracing=True))
    return called


def _total(strategy: Any, data: Any) -> Any:
    """The rows of all replicas. Endless data has no message of its own for this (see `parts.counting`)."""
    import tensorflow as tf

    def of_replica(data: Any) -> Any:
        rows = count(data)
        return tf.constant(1, tf.int64) if rows is None else rows

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica, args=(data,)), axis=None)


def leave_out_xla(model: Any) -> None:
    if model.jit_compile:
        print_once("jit_compile=True is ignored: XLA cannot compile the communication between workers")
        model.jit_compile = False
