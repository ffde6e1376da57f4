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
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import patches
from ..patches.features import PARTS, WARNINGS
from ..patches.import_hooks import print_once
from . import fit, optimizer, shares, state
from .rows import StandingRow, count

_here = threading.local()
"""`part`: what the replica of this thread computes from; `rows`: the rows of all replicas, once they are counted; `is_counting`;
`least`, `with_data`: see `counting_own`."""
EVEN = -1
"""In place of the rows of all replicas: every part of every batch has as many rows as the others, and has rows."""


@dataclasses.dataclass(frozen=True)
class Part:
    rows: Any
    """The number of the part's rows, a tensor."""
    weight: Any
    """The factor of the part's loss that makes the step that of the whole batch, 1.0 for even parts; None: each part counts the same."""
    trackers: tuple[Any, ...] = ()
    """The metrics of the losses of single outputs."""
    weight_of_losses: Any = None
    """The weight of this part in those metrics; None: `weight`."""
    share: Any = None
    """The weight of a mean over the part's rows in a mean over batches; None: each part has as many rows."""


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
    from keras import Model

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
        of_losses = share if shares.are_means(model) else None
        if is_as_first is not None and share is not None:
            of_losses = tf.where(is_as_first, tf.cast(rows, tf.float32), share / _replicas())
        trackers = tuple(getattr(model._compile_loss, "metrics", ()))
        with (
            shares.operations_kept() if _has_own_numbers(model) else contextlib.nullcontext(),
            optimizer.part(has_rows),
            as_part(Part(rows, _weight(model, total, share), trackers, of_losses, share)),
        ):
            counts = optimizer.counts()
            outputs = patches.theirs(step, data if is_even else standing.or_row(data, has_rows))
            losses, of_rows, added, steps = (now - before for now, before in zip(optimizer.counts(), counts, strict=True))
        # What becomes of the losses of single rows, and of those of regularizers, is the program's own, in a step of its own.
        has_own_step = type(model).train_step is not Model.train_step
        is_own = losses == (of_rows if has_own_step else 0)
        if steps and (is_own or (has_own_step and not added and _has_penalties(model))):
            optimizer.tell_of_sum(model, model.distribute_strategy.num_replicas_in_sync)
        if steps and share is not None and not _is_mean(model) and not is_own:
            told = functools.partial(tf.numpy_function, _tell_of_parts, [], tf.int32, stateful=True)
            tf.cond(rows * _replicas() == total, lambda: tf.constant(0), told)
        _tell_of_added_losses(model)
        if not is_even:
            tf.cond(has_rows, lambda: tf.constant(0), lambda: put_back(before))
    return outputs, tf.constant(1, tf.int64) if is_even else rows


def _has_own_numbers(model: Any) -> bool:
    """True if code of the program may combine losses. In a step without a graph, to keep the operations takes as long as the step."""
    own = [getattr(type(model), name) for name in ("train_step", "test_step", "compute_loss", "compute_metrics")]
    own += [type(layer).call for layer in model._flatten_layers()]
    return not all(str(each.__module__).startswith("keras.") for each in own)


def _has_penalties(model: Any) -> bool:
    """True if a layer or a regularizer adds to the loss."""
    regularized = (getattr(variable, "regularizer", None) for variable in model.trainable_variables)
    return any(layer._losses for layer in model._flatten_layers()) or any(each is not None for each in regularized)


@patches.guarded(WARNINGS)
def _tell_of_added_losses(model: Any) -> None:
    """Keras divides what a layer adds by the number of replicas, as a mean over rows."""
    for layer in model._flatten_layers():
        others = [loss for loss in layer._losses if not shares.is_share(loss)]
        if others and getattr(layer, "activity_regularizer", None) is None:
            hint = optimizer.hint(model.distribute_strategy.num_replicas_in_sync)
            print_once(f"add_loss of {layer.name!r} counts as a mean over rows: {hint}")
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


def _replicas() -> int:
    import tensorflow as tf

    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def share_of(rows: Any, total: Any) -> Any:
    """The weight of a part with so many rows in the mean of all parts, a tensor. None: all parts count the same. `total`: see `run`."""
    import tensorflow as tf

    if total is None or total is EVEN:
        return None
    return tf.cast(rows * _replicas(), tf.float64) / tf.cast(tf.maximum(total, 1), tf.float64)


def _weight(model: Any, total: Any, share: Any) -> Any:
    import tensorflow as tf

    if total is None or not _is_mean(model):
        return None
    return tf.constant(1.0) if total is EVEN else share


def _is_mean(model: Any) -> bool:
    """True if the loss of a step is known to be a mean over the rows (or the same for any rows, as that of a regularizer)."""
    from keras import Model

    fit.tell_of_circle(model)
    return shares.are_means(model) and all(getattr(type(model), name) is getattr(Model, name) for name in ("train_step", "compute_loss"))


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


def _tell_of_parts() -> Any:
    import numpy as np

    print_once("some batches have parts of unequal size, which count the same, so these steps differ from one process")
    return np.int32(0)


@contextlib.contextmanager
def losses_scaled(model: Any) -> Iterator[None]:
    """While this is entered, the model's optimizer scales a loss by the weight of the part, too. Keras's own `train_step` calls
    `Optimizer.scale_loss` before it takes the gradient, after it has counted the loss. Enter this outside of the code of the replicas.
    """
    its_own = getattr(model, "optimizer", None)
    if its_own is None:
        yield
        return
    with shares.replaced(its_own, "scale_loss", functools.partial(patches.guarded(PARTS)(_scaled), model, its_own.scale_loss)):
        yield


def _scaled(model: Any, real: Any, loss: Any) -> Any:
    from keras import Model

    if type(model).compute_loss is not Model.compute_loss and not shares.is_share(loss):
        optimizer.tell_of_sum(model, model.distribute_strategy.num_replicas_in_sync)
    loss, part = patches.theirs(real, loss), current()
    if part is None or part.weight is None:
        return loss
    import tensorflow as tf

    return loss * tf.cast(part.weight, loss.dtype)


def _track(real: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Keras's mean of the losses of one output is a mean over batches (keras/src/trainers/compile_utils.py), and so is a metric whose
    function returns one number for a batch, and a mean of one number that a step of the program shows: each part has its share. Since 3.16
    some batches weigh more (`rows_of_first`).
    """
    import keras

    part, shown = current(), values
    values = shares.whole(values)
    if part is None or sample_weight is not None:
        return real(self, values if part is None else optimizer.of_rows(self, values), sample_weight=sample_weight)
    values, weight = optimizer.of_rows(self, values), None
    if any(each is self for each in part.trackers):
        weight = part.weight if part.weight_of_losses is None else part.weight_of_losses
    elif part.share is not None and _is_one_number(values):
        weight = part.share
        # A sum counts as it is, and its part as much as in the mean of all parts. What a part without rows counts is put back.
        is_sum = shares.is_share(shown) and not shares.is_mean(shown)
        values = values / keras.ops.maximum(weight, 1e-9) if is_sum else values
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
