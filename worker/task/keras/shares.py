"""Which numbers of a step are a replica's share of a loss: Keras divides a loss by the number of replicas, because gradients are added.

Where a program shows such a loss, or a sum of several with factors, the number of one process is that of all rows: the share, times the
number of replicas.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
"""The reductions of a Keras loss that take the mean: the losses of all replicas are divided by their number."""
_SUMS, _FACTORS, _SAME = ("AddV2", "AddN"), ("Mul", "RealDiv"), ("Sub", "Neg", "Identity", "Cast")


class _Task:
    """Holds what is true in all threads of this task."""

    shares: list[tuple[Any, bool]] | None = None
    """The losses of the step that is traced of which each replica has a share: their sum over the replicas is that of one process. And
    whether each is a mean over rows, as far as its loss object tells."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.made: dict[int, tuple[str, Any, Any]] = {}
        """In a step without a graph, how the single numbers were made: by the number of a tensor, the operation and its inputs. And the
        tensor, so that no other one gets its number."""


_task, _here = _Task(), _Here()


def replicas() -> int:
    """Return how many replicas train together, in the code of a replica; 0: one, or not in the code of a replica."""
    import tensorflow as tf

    count = int(tf.distribute.get_strategy().num_replicas_in_sync)
    return count if count > 1 and tf.distribute.get_replica_context() is not None else 0


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


@contextlib.contextmanager
def losses_marked(model: Any) -> Iterator[None]:
    """While this is entered, `whole` knows the losses of Keras's loss objects and what Keras's `compute_loss` makes of them. Enter this
    outside of the code of the replicas.
    """
    from keras import Model

    before, _task.shares = _task.shares, []
    is_of_keras = type(model).compute_loss is Model.compute_loss
    try:
        with (
            replaced(model, "compute_loss", functools.partial(_compute_loss, model.compute_loss, are_means(model)))
            if is_of_keras
            else contextlib.nullcontext()
        ):
            yield
    finally:
        _task.shares = before


@contextlib.contextmanager
def operations_kept() -> Iterator[None]:
    """While this is entered in a replica's thread, it is known how a step without a graph makes its numbers. A graph knows this itself."""
    import tensorflow as tf
    from tensorflow.python.framework import op_callbacks

    _here.made = {}
    if not tf.executing_eagerly():
        yield
        return

    def keep(kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        if graph is None and kind in (*_SUMS, *_FACTORS, *_SAME) and outputs[0].shape.rank == 0:
            _here.made[outputs[0]._id] = (kind, tuple(inputs), outputs[0])

    op_callbacks.add_op_callback(keep)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(keep)


def _compute_loss(real: Any, is_mean: bool, *args: Any, **kwargs: Any) -> Any:
    return mark(real(*args, **kwargs), is_mean)


def are_means(model: Any) -> bool:
    """True if each loss that a model is compiled with is a mean over the rows that it gets."""
    from keras import tree

    losses = tree.flatten(getattr(model._compile_loss, "_user_loss", None))
    return not any(getattr(loss, "reduction", "mean") in ("sum", "none", None) for loss in losses)


def mark(loss: Any, is_mean: bool) -> Any:
    if _task.shares is not None and tuple(loss.shape) == ():  # Keras divides no losses of single rows
        _task.shares.append((loss, is_mean))
    return loss


def is_share(value: Any) -> bool:
    """True if this is a replica's share of the loss of all, because Keras has divided it, or a sum of such losses and their multiples."""
    return bool(_kinds(value))


def is_mean(value: Any) -> bool:
    """True if this is a replica's share of a loss that is a mean over rows."""
    return all(_kinds(value) or [False])


def whole(value: Any) -> Any:
    """Return what a program shows: a replica's share of the loss, which Keras has divided, times the number of replicas."""
    return value * replicas() if replicas() and is_share(value) else value


def _kinds(value: Any) -> list[bool] | None:
    """For each of the losses that Keras has divided of which a tensor is a sum with constant factors: whether it is a mean over rows. None:
    the tensor is something else, or a factor is the number of replicas, so that the number is a whole one again.
    """
    for each, of_mean in list(_task.shares or ()):
        if each is value:
            return [of_mean]
    kind, inputs = _made(value) if _task.shares else ("", [])
    if kind in _FACTORS:
        *others, factor = inputs if kind == "RealDiv" or _constant(inputs[1]) is not None else reversed(inputs)
        number = _constant(factor)
        inputs = others if number is not None and (1 / number if kind == "RealDiv" else number) != replicas() else []
    elif kind in _SUMS:
        inputs = [each for each in inputs if _constant(each) != 0]  # `sum` of Python begins with 0
    elif kind not in _SAME:
        return None
    found = [_kinds(each) for each in inputs]
    return [of_mean for each in found for of_mean in each or ()] if found and all(found) else None


def _made(value: Any) -> tuple[str, list[Any]]:
    """The operation that has made a number, and its inputs."""
    import tensorflow as tf

    if not tf.is_tensor(value) or tf.TensorShape(value.shape).rank != 0:
        return "", []
    if hasattr(value, "_numpy"):
        kind, inputs, _ = _here.made.get(value._id, ("", (), None))
        return kind, list(inputs)
    operation = getattr(value, "op", None)
    return (operation.type, list(operation.inputs)) if operation is not None else ("", [])


def _constant(value: Any) -> Any:
    """A number that is not computed, or None."""
    import tensorflow as tf

    if hasattr(value, "_numpy"):
        return None if value._id in _here.made or any(each is value for each, _ in _task.shares or ()) else value.numpy()
    return tf.get_static_value(value)
