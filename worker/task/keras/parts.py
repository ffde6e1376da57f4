"""Defines what a replica computes from its part of a global batch, also where the part has no rows or fewer rows than the others.

TensorFlow cuts a batch into one part for each replica (mostly of equal size, the last ones smaller or empty), and gives empty parts to a
worker whose data has ended (tensorflow/python/distribute/input_lib.py). Keras 3 takes every part for a whole one: the mean of an empty
part is NaN, which `BatchNormalization` keeps, TensorFlow's convolutions fail on one, and a part of one row has the weight of a part of
eight rows.

With this module, a replica without rows computes the step from one row of zeros, because it must take part in the communication of a
step. The row counts nothing: its gradient is left out, and whatever the step has written, except by the optimizer, is put back. And each
part has the weight of its rows, so that the gradient is that of the whole batch, where orch knows that the loss is a mean over rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import patches
from ..patches.features import PARTS, WARNINGS
from ..patches.import_hooks import print_once
from . import one_replica, optimizer, state
from .one_replica import replicas
from .rows import StandingRow, count, known

_here = threading.local()
"""`part`: what the replica of this thread computes from; `rows`: the rows of all replicas, once they are counted; `is_counting`;
`least`, `with_data`: see `counting_own`."""
EVEN = -1
"""In place of the rows of all replicas: every part of every batch has as many rows as the others, and has rows."""


@dataclasses.dataclass(frozen=True)
class Part:
    rows: Any
    """The number of the part's rows, a tensor."""
    trackers: tuple[Any, ...] = ()
    """The metrics of the losses of single outputs."""
    weight_of_losses: Any = None
    """The weight of this part in those metrics; None: as in other means."""
    share: Any = None
    """The weight of a mean over the part's rows in a mean over batches; None: each part has as many rows."""
    has_any: Any = True
    """Whether any part has a row: with data of its own, each worker may have a batch without rows."""


def mend() -> None:
    """Replace the functions that take a part for a whole batch."""
    patches.replace(PARTS, "input_lib._calculate_replicas_with_values", _count)
    patches.replace(PARTS, "nn._compute_moments_sync", _moments)
    patches.replace(PARTS, "Variable.__init__", _make_variable)
    patches.replace(PARTS, "Mean.update_state", _track)


# --- one step of a replica -----------------------------------------------------------------------


def run(
    model: Any, step: Callable[[Any], Any], data: Any, total: Any, is_as_first: Any = None, standing: StandingRow | None = None
) -> tuple[Any, Any]:
    """The outputs of a step of Keras from a replica's part, and the number of its rows. `total`: the rows of all replicas, if known, or
    `EVEN`. `is_as_first`: whether these are as many as in the first batch, where that matters (see `rows_of_first`). `standing`: the row
    in place of no rows.
    """
    import tensorflow as tf

    rows, standing = count(data), standing or StandingRow()
    if rows is None:
        return patches.theirs(step, data), tf.constant(1, tf.int64)
    # At the end of the data no operation of a step may run. Without this, those that need no data would run, such as the count of steps.
    tensors = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(leaf)]
    with tf.control_dependencies(tensors):
        ready = [tf.no_op()] if not tf.executing_eagerly() else []
    with tf.control_dependencies(ready):
        is_even = total is EVEN
        has_rows = None if is_even else rows > 0
        before = [] if is_even else [(variable, variable.value()) for variable in _state(model)]
        own = share_of(rows, total)
        share = None if own is None else tf.cast(own, tf.float32)
        of_losses = None
        if is_as_first is not None and share is not None:
            of_losses = tf.where(is_as_first, tf.cast(rows, tf.float32), share / replicas())
        trackers = tuple(getattr(model._compile_loss, "metrics", ()))
        weight = (1.0 if share is None else share) / replicas()
        is_scaled = not one_replica.has_own_step(model)
        is_joined = share is not None and not is_scaled and any(getattr(each, "synchronized", False) for each in model._flatten_layers())
        view = one_replica.View(weight, has_rows, has_all=total is None, is_scaled=is_scaled, rows=known(data), is_joined=is_joined)
        counts = optimizer.counts()
        with one_replica.seen(view), as_part(Part(rows, trackers, of_losses, share, share is None or total > 0)):
            outputs = patches.theirs(step, data if is_even else standing.or_row(data, has_rows))
        losses, of_rows, steps = (now - before for now, before in zip(optimizer.counts(), counts, strict=True))
        if steps and losses == of_rows and optimizer.has_own_loss(model):
            optimizer.tell_of_own_loss(model, replicas())
        _tell_of_added_losses(model, view.made)
        if not is_even:
            tf.cond(has_rows, lambda: tf.constant(0), lambda: put_back(before))
    return outputs, tf.constant(1, tf.int64) if is_even else rows


@patches.guarded(WARNINGS)
def _tell_of_added_losses(model: Any, known: list[Any]) -> None:
    """Say what the numbers count that layers add to the loss. `known`: losses that loss objects of Keras have made."""
    for layer in model._flatten_layers():
        others = [loss for loss in layer._losses if not any(each is loss for each in known)]
        if others and getattr(layer, "activity_regularizer", None) is None:
            print_once(f"add_loss of {layer.name!r} counts as a mean over rows: {optimizer.hint(replicas())}")
            return


def current() -> Part | None:
    """Return what the replica of this thread computes from.

    None outside of a step of `fit`, `evaluate` and `predict` with several workers.
    """
    return getattr(_here, "part", None)


@contextlib.contextmanager
def as_part(part: Part | None) -> Iterator[None]:
    """While this is entered in a replica's thread, the replica computes from this part. None: from the rows of all replicas."""
    before, _here.part = current(), part
    try:
        yield
    finally:
        _here.part = before


def _state(model: Any) -> list[Any]:
    """This replica's own variables of what a step writes without the optimizer: metrics, moving statistics, the state of own layers.

    Without the variables that TensorFlow makes equal on all replicas at each assignment: only all replicas together could put them back.
    And without those of `BatchNormalization(synchronized=True)` and of metrics of the program, which get the rows of all replicas.
    """

    equal = [
        each for each in model._flatten_layers() if getattr(each, "synchronized", False) or type(each).__name__ == "SpectralNormalization"
    ]
    shared = [variable for layer in equal for variable in layer._non_trainable_variables]
    found = {id(variable): variable.value for variable in [*model.metrics_variables, *state.of_layers(model)]}
    shared += [variable for metric in metrics_of(model) if "update_state" in vars(metric) for variable in metric.variables]
    found = {key: variable for key, variable in found.items() if key not in map(id, shared)}
    return on_this_replica(found.values())


def on_this_replica(variables: Iterable[Any]) -> list[Any]:
    """This replica's own variables, of those that are not equal on all replicas."""
    import tensorflow as tf

    own = [
        variable
        for variable in variables
        if variable.synchronization == tf.VariableSynchronization.ON_READ or variable.aggregation == tf.VariableAggregation.NONE
    ]
    return [variable._get_on_device_or_primary() if hasattr(variable, "_get_on_device_or_primary") else variable for variable in own]


def metrics_of(model: Any) -> list[Any]:
    found = [*model.metrics, *getattr(model._compile_metrics, "metrics", ())]
    return list({id(metric): metric for metric in found}.values())


def _make_variable(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """A variable that a step makes when it first runs must not wait for the data of the step: TensorFlow makes it before."""
    if current() is None:
        real(self, *args, **kwargs)
        return
    import tensorflow as tf

    with tf.control_dependencies(None):
        real(self, *args, **kwargs)


def put_back(before: list[tuple[Any, Any]]) -> Any:
    import tensorflow as tf

    for variable, value in before:
        variable.assign(value)
    return tf.constant(0)


# --- the weight of a part --------------------------------------------------------------------------


@contextlib.contextmanager
def counting() -> Iterator[Callable[[], Any]]:
    """While this is entered, the iterator of a distributed dataset counts the rows of all replicas. Gives what it counted, or None."""
    _here.is_counting, _here.rows = True, None
    try:
        yield lambda: _here.rows
    finally:
        _here.is_counting = False


@contextlib.contextmanager
def counting_own(least: Any) -> Iterator[Callable[[], Any]]:
    """While this is entered, the iterator of a distributed dataset asks no other worker whether it has data. `least`: how many replicas
    have data at least, a tensor; the others get empty parts. Gives how many replicas of this worker have data, or None: the data never end.
    """
    _here.least, _here.with_data = least, None
    try:
        yield lambda: _here.with_data
    finally:
        del _here.least


def _count(real: Any, strategy: Any, workers: Any, optionals: Any) -> Any:
    """The number of replicas with data; the workers tell each other their numbers of rows with the same message, which costs nothing
    more.
    """
    import tensorflow as tf

    least = getattr(_here, "least", None)
    if least is not None:
        _here.with_data = tf.add_n([tf.cast(optional.has_value(), tf.int64) for of_worker in optionals for optional in of_worker])
        return least + _here.with_data
    if not getattr(_here, "is_counting", False):
        return real(strategy, workers, optionals)

    def rows(optional: Any) -> Any:
        found = count(optional.get_value())
        return tf.constant(0, tf.int64) if found is None else found

    each = [optional for of_worker in optionals for optional in of_worker]
    own = [tf.cond(optional.has_value(), lambda optional=optional: rows(optional), lambda: tf.constant(0, tf.int64)) for optional in each]
    with_data = [tf.cast(optional.has_value(), tf.int64) for optional in each]
    both = strategy.reduce(tf.distribute.ReduceOp.SUM, tf.stack([tf.add_n(with_data), tf.add_n(own)]), axis=None)
    _here.rows = both[1]
    return both[0]


def share_of(rows: Any, total: Any) -> Any:
    """The weight of a part with so many rows in the mean of all parts, a tensor. None: all parts count the same. `total`: see `run`."""
    import tensorflow as tf

    if total is None or total is EVEN:
        return None
    return tf.cast(rows * replicas(), tf.float64) / tf.cast(tf.maximum(total, 1), tf.float64)


def rows_of_first(model: Any) -> Any:
    """A variable for the number of rows of the first batch of a function of steps, 0 so far; None: it does not matter.

    `CompileLoss.call` takes the number of rows that a graph knows for the weight of a loss of one output. Since 3.16 Keras gives single
    batches to the graph of one step (`Trainer._make_function`): the first graph knows the rows of the first batch, and the graph for
    batches of other sizes knows none, so that such a batch has the weight of one row.
    """
    import tensorflow as tf

    gives_batches = patches.form_of("Trainer._make_function").startswith("3.16")
    if not gives_batches or model.run_eagerly or model.steps_per_execution != 1:
        return None
    with tf.init_scope():
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def _track(real: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Keras's mean of the losses of one output is a mean over batches (keras/src/trainers/compile_utils.py), and so is a metric whose
    function returns one number for a batch, and a mean of one number that a step of the program shows: each part has its share. Since 3.16
    some batches weigh more (`rows_of_first`).
    """
    part, weight = current(), None
    if part is not None and sample_weight is None and _is_one_number(values):
        is_of_losses = part.weight_of_losses is not None and any(each is self for each in part.trackers)
        weight = part.weight_of_losses if is_of_losses else part.share
    if weight is not None:
        import tensorflow as tf

        sample_weight = tf.cast(weight, self.dtype)
    return real(self, values, sample_weight=sample_weight)


def _is_one_number(values: Any) -> bool:
    import tensorflow as tf

    return hasattr(values, "shape") and tf.TensorShape(values.shape).rank == 0


def _moments(real: Any, x: Any, axes: Any, keepdims: Any) -> Any:
    """The moments for `BatchNormalization(synchronized=True)`, to which a row of zeros in place of an empty part adds nothing."""
    part = current()
    return real(x if part is None or 0 not in [axis % len(x.shape) for axis in axes] else x[: part.rows], axes, keepdims)
