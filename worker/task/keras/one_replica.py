"""Lets the code of a step see one replica, so that its numbers are those of one process.

A program that takes the mean over its batch is right in one process. With several replicas TensorFlow adds up the gradients. Keras divides
its own losses by `num_replicas_in_sync` for this (keras/src/losses/loss.py, `scale_loss_for_distribution`), but none that the program
computes, whose gradient becomes N times too large (keras#15509). Where orch runs the step, `num_replicas_in_sync` is 1 in the code of a
replica: Keras divides nothing, a program that divides by it changes nothing, and every loss is a mean over the rows of the part, as it is
shown. The optimizer then takes the mean of the gradients, in which each part has the weight of its rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

from .. import patches
from ..patches.features import STEP
from ..shared import shared
from . import rows


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    weight: Any
    """What this replica's mean counts in the mean of all: a number, or a tensor. None: a metric is computed from the rows of all."""
    has_rows: Any = None
    """Whether the replica's part of the batch has any row: a tensor; None: it has."""
    has_all: bool = False
    """Each replica has the rows of all, so that its sum is that of all."""
    is_scaled: bool = False
    """The loss has this weight before its gradient is taken, which costs less."""
    rows: int | None = None
    """The number of rows of this replica's part, if the graph knows it."""
    is_joined: bool = False
    """Layers bring gradients from one replica to another, such as those of shared moments."""
    made: list[Any] = dataclasses.field(default_factory=list)
    """The losses that Keras's loss objects have made in this step."""

    def weigh(self, value: Any) -> Any:
        """Return a number or a gradient, times the weight."""
        import tensorflow as tf

        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.weigh(value.values), value.indices, value.dense_shape)
        return value if self.weight is None else value * tf.cast(self.weight, value.dtype)

    def weigh_last(self, gradient: Any) -> Any:
        """Return what of a gradient is added to those of the other replicas."""
        return gradient if self.is_scaled else self.weigh(gradient)

    def is_of_rows(self, loss: Any) -> bool:
        """True if a loss has a number for each row, and not one for each output, as a mean over the rows may have."""
        return bool(loss.shape.rank) and loss.shape[0] in (None, self.rows)

    def sum_of_all(self, loss: Any) -> Any:
        """Make of a sum over the rows of this part what has the sum over all rows for its weighted mean."""
        import tensorflow as tf

        if self.weight is None or self.has_all:
            return loss
        return loss / tf.maximum(tf.cast(self.weight, loss.dtype), 1e-9)  # what a part without rows gives does not count


_here = shared("view of a step", threading.local)
"""`view`: what the code of a step sees in this thread. TensorFlow has a thread for each replica."""


def mend() -> None:
    patches.put(STEP, "StrategyBase.num_replicas_in_sync", lambda real: property(lambda self: 1 if current() else real.fget(self)))
    patches.replace(STEP, "GradientTape.gradient", _gradient)
    patches.replace(STEP, "nn.compute_average_loss", _average_loss)


def _gradient(real: Any, self: Any, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any) -> Any:
    """The gradient of the losses of single rows is that of their sum. A gradient of something else, as in a penalty, stays what it is.

    Where layers bring gradients from one replica to another, each loss gets its weight first, of which the gradient is freed afterwards.
    """
    import tensorflow as tf

    view, losses = current(), tf.nest.flatten(target)
    is_of_losses = output_gradients is None and all(hasattr(source, "assign") for source in tf.nest.flatten(sources))
    if view is None or not is_of_losses or not all(map(tf.is_tensor, losses)):
        return real(self, target, sources, output_gradients, **kwargs)
    weight = tf.where(view.has_rows, view.weight, 1.0) if view.is_joined else None
    if weight is None and not any(map(view.is_of_rows, losses)):
        return real(self, target, sources, **kwargs)

    def upstream(loss: Any) -> Any:
        one = view.sum_of_all(tf.ones_like(loss)) if view.is_of_rows(loss) else tf.ones_like(loss)
        return one if weight is None else view.weigh(one)

    found = real(self, target, sources, tf.nest.map_structure(upstream, target), **kwargs)
    return found if weight is None else tf.nest.map_structure(lambda each: None if each is None else _divided(each, weight), found)


def _divided(gradient: Any, weight: Any) -> Any:
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(gradient.values, weight), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(weight, gradient.dtype)


def _average_loss(real: Any, losses: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
    """The sum over this part, divided by the rows of all."""
    made, view = real(losses, sample_weight, global_batch_size), current()
    return made if view is None or global_batch_size is None else view.sum_of_all(made)


def current() -> View | None:
    """Return what the code of this replica sees; None: it is in no step that orch runs."""
    return getattr(_here, "view", None)


@contextlib.contextmanager
def seen(view: View) -> Iterator[None]:
    """Enter this in a replica's thread."""
    before, _here.view = current(), view
    try:
        yield
    finally:
        _here.view = before


def replicas() -> int:
    """Return how many replicas train together, in the code of a replica; 0: one, or not in the code of a replica."""
    import tensorflow as tf

    count = int(tf.distribute.get_strategy().extended._num_replicas_in_sync)
    return count if count > 1 and tf.distribute.get_replica_context() is not None else 0


@contextlib.contextmanager
def losses_scaled(model: Any) -> Iterator[None]:
    """While this is entered, Keras's own `train_step` weighs the loss: it calls `Optimizer.scale_loss` before it takes the gradient, and
    after it has counted the loss. Enter this outside of the code of the replicas.
    """
    its_own = getattr(model, "optimizer", None)
    if its_own is None or has_own_step(model):
        yield
        return
    with replaced(its_own, "scale_loss", functools.partial(patches.guarded(STEP)(_scaled), its_own.scale_loss)):
        yield


def _scaled(real: Any, loss: Any) -> Any:
    loss, view = patches.theirs(real, loss), current()
    return loss if view is None else view.weigh(loss)


@contextlib.contextmanager
def in_steps_of_keras(model: Any) -> Iterator[None]:
    """While this is entered, the steps of a model see one replica also where Keras's own functions run them, on equal parts."""

    def run(step: Any, data: Any) -> Any:
        with seen(View(1 / (replicas() or 1), is_scaled=not has_own_step(model), rows=rows.known(data))):
            return patches.theirs(step, data)

    run = patches.guarded(STEP)(run)
    with contextlib.ExitStack() as stack:
        for name in ("train_step", "test_step"):
            stack.enter_context(replaced(model, name, functools.partial(run, getattr(model, name))))
        stack.enter_context(losses_scaled(model))
        yield


def has_own_step(model: Any) -> bool:
    from keras import Model

    return type(model).train_step is not Model.train_step


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While this is entered, an object has this attribute of its own."""
    had, before = name in vars(owner), vars(owner).get(name)
    vars(owner)[name] = value
    try:
        yield
    finally:
        if had:
            vars(owner)[name] = before
        else:
            del vars(owner)[name]
