"""The step of a Keras 3 optimizer with several replicas, in the right order, and losses that are one number.

Keras clips the gradients of each replica, looks for an overflow among them, and applies the weight decay, all before it adds the gradients
of the replicas (keras/src/optimizers/base_optimizer.py, `_backend_apply_gradients`; loss_scale_optimizer.py, `_tf_apply`). So clipped
weights differ from those of one process (tensorflow#33929), and a worker whose own gradients overflow skips the communication for which
the other workers wait. With this module a step adds the gradients first, once, as Keras 2 and DistributedDataParallel do. All else that the
step does is Keras's own code, which gets the sums in place of the gradients, and in a graph all of it waits for all of the sums.

A loss is a mean over rows, whatever makes it (see `one_replica`). Where Keras's own numbers stay, a loss function's result that is one
number is not divided (keras/src/losses/loss.py, `reduce_values`). Keras 2 does so (tf_keras/src/engine/compile_utils.py,
`LossesContainer`).

The right order is the default where only orch makes a training work: in `fit` with several workers. What also works without orch keeps the
numbers that it has there, and orch names the difference, unless `keras: {exact: true}` asks for the right order everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ...settings import releases
from .. import failure, patches
from ..patches.features import STEP, WARNINGS
from ..patches.import_hooks import print_once
from . import fit, loss_functions, one_replica
from .one_replica import replicas

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
"""The reductions of a Keras loss that take the mean."""
_CLIPS = re.compile(r"(^|/)clip_by_(norm|global_norm|value)(_\d+)?(/|$)")


class _Here(threading.local):
    """Holds what is true in this thread: TensorFlow has one for each replica."""

    is_added: bool = False
    """The gradients that are being applied are already the sums of all replicas."""
    losses: int = 0
    """How many losses Keras has reduced."""
    rows: int = 0
    """Of how many of these it has left the losses of single rows to the program."""
    steps: int = 0
    """How often an optimizer was given gradients."""


_here = _Here()


class _Task:
    """Holds what is true in all threads of this task."""

    is_exact = False
    """The setting `keras.exact`."""
    in_loops = 0
    """How many of Keras's own loops (`fit`, `evaluate`, ...) run, one inside the other."""
    model: Any = None
    """The model of the innermost of these loops."""


_task = _Task()


def mend(*, is_exact: bool, in_cluster: bool) -> None:
    """Replace the functions of Keras's optimizers and losses. `is_exact`: the setting; `in_cluster`: several workers may train a model.

    Where nothing asks for the right order, only warnings are printed.
    """
    feature = STEP if (is_exact or in_cluster) and patches.is_on(STEP) else WARNINGS
    _task.is_exact = is_exact and feature == STEP
    for kind in ("BaseOptimizer", "LossScaleOptimizer"):
        patches.replace(feature, f"{kind}.apply", _apply)
    for name in ("train_function", "test_function"):
        patches.replace(feature, f"Trainer.make_{name}", functools.partial(_make, name))
    patches.replace(feature, "loss.reduce_weighted_values", _reduce_weighted)
    patches.replace(feature, "loss.apply_mask", _apply_mask)
    if feature == STEP:
        one_replica.mend()
        patches.replace(STEP, "LossScaleOptimizer._stateful_handle_finite_grads", _apply_finite)
        patches.replace(STEP, "TFOptimizer._all_reduce_sum_gradients", _all_reduce)
        patches.replace(STEP, "TFOptimizer._overwrite_model_variables_with_average_value", _overwrite)
        patches.replace(STEP, "backend.cond", _cond)


def _make(name: str, real: Any, model: Any, force: bool = False) -> None:
    """Make the function that runs a step of a loop of Keras: ``train_function`` or ``test_function``."""
    before = getattr(model, name)
    real(model, force)
    made = getattr(model, name)
    if made is not before:
        setattr(model, name, in_loop(model, made))


def in_loop(model: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that runs a step of one of Keras's own loops, during which this module knows that it runs."""
    _name_penalties(model)

    def step(iterator: Any) -> Any:
        before, _task.model = _task.model, model
        _task.in_loops += 1
        strategy = model.distribute_strategy
        is_of_keras = _task.is_exact and strategy.num_replicas_in_sync > 1 and not fit.is_wanted(strategy)
        try:
            with one_replica.in_steps_of_keras(model) if is_of_keras else contextlib.nullcontext():
                return function(iterator)
        finally:
            _task.in_loops -= 1
            _task.model = before

    return step


@patches.guarded(WARNINGS)
def _name_penalties(model: Any) -> None:
    """Say that Keras before 3.14 adds up the penalties of `activity_regularizer` over the rows of a part, and does not take their mean
    (keras/src/layers/layer.py, `Layer.__call__`).
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    is_sum = releases.release(sys.modules["keras"].__version__) < (3, 14)
    layers = model._flatten_layers() if replicas > 1 and is_sum else ()
    if any(getattr(layer, "activity_regularizer", None) is not None for layer in layers):
        print_once(f"activity_regularizer: before Keras 3.14 its penalty in {replicas} replicas is 1/{replicas} of that in one process")


def _is_wanted() -> bool:
    """True if the code of a replica that is running here works in the right order."""
    if not replicas():
        return False
    import tensorflow as tf

    return _task.is_exact or (_task.in_loops > 0 and fit.is_wanted(tf.distribute.get_strategy()))


# --- optimizers ---------------------------------------------------------------------------------


def _apply(real: Any, self: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Add the gradients of all replicas, then do all that Keras does in a step."""
    if _here.is_added:  # an optimizer inside of another one
        real(self, grads, trainable_variables)
        return
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    grads = list(grads)
    _tell_of_clipping(grads)
    grads = _weighed(grads)
    _here.steps += 1
    if not _is_wanted():
        _name_differences(self, grads)
        real(self, grads, trainable_variables)
        return
    if _scales_losses(self):
        print_once("mixed precision: a part of a batch overflows and rounds at other values than a whole batch in one process")
    _build(self, trainable_variables)
    grads = _added(self, grads, trainable_variables)
    with _after(grads), _is_added():
        real(self, grads, trainable_variables)


def _build(optimizer: Any, variables: Any) -> None:
    """Make the variables of the optimizer, as Keras does in its first step: none can be made inside of `_after`."""
    if variables is not None and not optimizer.built:
        from keras.src import backend

        with backend.name_scope(optimizer.name, caller=optimizer):
            patches.theirs(optimizer.build, variables)
        optimizer.built = True


def _apply_finite(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Do what LossScaleOptimizer does if no gradient overflows: TensorFlow runs this for each replica in a thread of its own."""
    with _is_added(_here.is_added or _is_wanted()):
        real(self, *args, **kwargs)


def _scales_losses(optimizer: Any) -> bool:
    return any(kind.__name__ == "LossScaleOptimizer" for kind in type(optimizer).__mro__)


@patches.guarded(WARNINGS)
def _name_differences(optimizer: Any, grads: list[Any]) -> None:
    """Say which numbers of Keras's own step are not those of one process."""
    count = replicas()
    if not count:
        return
    if _task.in_loops and not _here.losses and _task.model is not None and has_own_loss(_task.model):
        tell_of_own_loss(_task.model, count)
    options = [name for name in ("clipnorm", "global_clipnorm", "clipvalue") if (getattr(optimizer, name, None) or 0) > 0]
    if type(optimizer).__name__ != "SGD" and any(map(_is_of_no_row, grads)):
        print_once(
            f"an embedding of positions: Keras squares gradients on each of the {count} replicas, so weights differ from one process. "
            "fix: --set keras.exact=true"
        )
    if options:
        print_once(
            f"{options[0]}: Keras clips on each of the {count} replicas before it adds, so the weights differ from one process. "
            "fix: --set keras.exact=true"
        )
    if _scales_losses(optimizer):
        print_once(
            f"mixed precision: an overflow in one of the {count} replicas can make weights NaN, or leave workers waiting. "
            "fix: --set keras.exact=true"
        )


@patches.guarded(WARNINGS)
def _tell_of_clipping(grads: list[Any]) -> None:
    """Say that the program clips what is no gradient of a whole batch: TensorFlow names the operations that do so."""
    import tensorflow as tf

    if not replicas() or tf.executing_eagerly():
        return
    tensors = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads if grad is not None]
    names = [tensor.op.name for tensor in tensors if isinstance(tensor, tf.Tensor)]  # a variable has no operation
    if any(_CLIPS.search(name) and "gradient_tape" not in name for name in names):
        right = "" if _is_wanted() else ", with --set keras.exact=true"
        print_once(
            f"the program clips the gradients of each of the {replicas()} replicas before they are added. "
            f"fix: clipnorm, global_clipnorm or clipvalue of the optimizer{right}"
        )


@contextlib.contextmanager
def _is_added(is_added: bool = True) -> Iterator[None]:
    """While this is entered, the gradients that this thread applies are sums of all replicas: Keras need not add them."""
    before, _here.is_added = _here.is_added, is_added
    try:
        yield
    finally:
        _here.is_added = before


def _after(grads: Any) -> Any:
    """While this is entered in a graph, each operation waits for all of these sums: a worker that waits for a dead worker has changed no
    variable of the step.
    """
    import tensorflow as tf

    return tf.control_dependencies(tf.nest.flatten([grad for grad in grads if grad is not None], expand_composites=True))


def _weighed(grads: Any) -> Any:
    """The gradients with the weight of this replica's part, or zeros if it has no row. A condition costs nothing; `tf.where` would copy
    them all.
    """
    import tensorflow as tf

    view = one_replica.current()
    if view is None:
        return grads
    dense = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads if grad is not None]

    def weigh() -> Any:
        return [tf.identity(view.weigh_last(each)) for each in dense]

    made = iter(weigh() if view.has_rows is None else tf.cond(view.has_rows, weigh, lambda: [tf.zeros_like(each) for each in dense]))

    def replaced(grad: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(next(made), grad.indices, grad.dense_shape)
        return None if grad is None else next(made)

    return [replaced(grad) for grad in grads]


def _added(optimizer: Any, grads: Any, variables: Any) -> Any:
    """The sums of the gradients of all replicas. A variable that Keras overwrites by its gradient (float8) keeps the gradient.

    TensorFlow puts the slices of all replicas one after the other, and Keras squares and clips each. So it does in one process with the
    slices of all rows; but slices that belong to no row, as of an embedding of positions, are there only once.
    """
    import tensorflow as tf

    grads = list(grads)
    variables = optimizer._trainable_variables if variables is None else variables
    pairs = enumerate(zip(grads, variables, strict=False))
    places = [place for place, (grad, variable) in pairs if grad is not None and not optimizer._overwrite_variable_with_gradient(variable)]
    if places:
        are = _are_of_no_row([grads[place] for place in places])
        own = [grads[place].values if is_of_no_row else grads[place] for place, is_of_no_row in zip(places, are, strict=True)]
        added: Any = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
        for place, grad, is_of_no_row in zip(places, added, are, strict=True):
            slices = grads[place]
            grads[place] = tf.IndexedSlices(grad, slices.indices, slices.dense_shape) if is_of_no_row else grad
    return grads


def _are_of_no_row(grads: list[Any]) -> list[bool]:
    """True for each gradient that is slices which belong to no row. Without a graph: slices that all replicas have, each once."""
    import tensorflow as tf

    are = [_is_of_no_row(grad) for grad in grads]
    if not tf.executing_eagerly() or not any(isinstance(grad, tf.IndexedSlices) for grad in grads):
        return are
    indices = [grad.indices.numpy() if isinstance(grad, tf.IndexedSlices) else None for grad in grads]
    marks = [(0, 1) if each is None else (zlib.crc32(each.tobytes()) >> 12, len(set(each)) < len(each)) for each in indices]
    marked = tf.constant([[mark, mark * mark, is_twice] for mark, is_twice in marks], tf.float64)
    of_all = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, marked).numpy()
    return [mark**2 == replicas() * square and not twice for mark, square, twice in of_all]


def _is_of_no_row(grad: Any) -> bool:
    """True if a gradient is slices of a variable, in a graph, and nothing that a step is given decides which."""
    import tensorflow as tf

    if not isinstance(grad, tf.IndexedSlices) or tf.executing_eagerly() or not grad.values.shape.is_fully_defined():
        return False
    seen, todo = set[str](), [grad.indices.op]
    while todo:
        op = todo.pop()
        if op.type == "Placeholder" or op.op_def.is_stateful:
            return False
        if op.type != "Shape" and op.name not in seen:
            seen.add(op.name)
            todo += [each.op for each in op.inputs]
    return True


def _all_reduce(real: Any, self: Any, pairs: Any) -> Any:
    return list(pairs) if _here.is_added else real(self, pairs)


def _cond(real: Any, condition: Any, then: Any, otherwise: Any) -> Any:
    """A condition of a Keras optimizer. Its branches (`gradient_accumulation_steps`, `ema_overwrite_frequency`) update variables, for which
    all replicas must meet. TensorFlow refuses a meeting in a branch (tensorflow/python/distribute/distribute_lib.py, `merge_call`), so the
    replicas meet before the condition.
    """
    if not _here.is_added:
        return real(condition, then, otherwise)
    import tensorflow as tf

    def run(branch: Any) -> Any:
        with _is_added():
            return patches.theirs(branch)

    def meet(strategy: Any, condition: Any, *branches: Any) -> Any:
        def in_each(branch: Any) -> Any:
            return lambda: strategy.extended.call_for_each_replica(run, args=(branch,))

        return real(strategy.experimental_local_results(condition)[0], *map(in_each, branches))

    # A branch may also give numbers, as one of a learning rate's schedule does.
    return tf.distribute.get_replica_context().merge_call(meet, args=(condition, then, otherwise))


def _overwrite(real: Any, self: Any, variables: Any) -> None:
    """Overwrite the weights by their moving averages, which Keras can do only outside of the code of a replica."""
    import tensorflow as tf

    if _here.is_added:
        tf.distribute.get_replica_context().merge_call(lambda strategy: real(self, variables))
    else:
        real(self, variables)


# --- losses -------------------------------------------------------------------------------------


def counts() -> tuple[int, int, int]:
    """Return how many losses Keras has made in this thread, how many of single rows, and how often an optimizer was given gradients."""
    return _here.losses, _here.rows, _here.steps


def has_own_loss(model: Any) -> bool:
    """True if code of the program computes the loss of a step."""
    from keras import Model

    return one_replica.has_own_step(model) or type(model).compute_loss is not Model.compute_loss


@patches.guarded(WARNINGS)
def tell_of_own_loss(model: Any, count: int) -> None:
    """Say how to find out what gradients count of a loss that no loss object of Keras has made."""
    counts = ", which counts as a mean over rows" if _is_wanted() else ", and Keras adds the replicas' gradients"
    print_once(f"{type(model).__name__} computes its loss itself{counts}: {hint(count)}")


def hint(count: int) -> str:
    """Return how a user finds out what only a measurement can tell."""
    is_one_task, strategy = os.environ.get("WORLD_SIZE", "1") == "1", os.environ.get("ORCH_RUN_STRATEGY")
    tasks = f"--strategy {strategy} --cpus {count}" if is_one_task and strategy else f"-n {count}"
    return f"orch verify {os.path.basename(sys.argv[0])} {tasks} shows whether this training is that of one process"


@patches.guarded(WARNINGS)
def _look_at_function(caller: Any) -> bool | None:
    """Whether the loss that Keras's class reduces now is a mean over rows (see `loss_functions`). Say so if not."""
    loss, *given = (caller.f_locals.get(name) for name in ("self", "y_true", "y_pred"))
    if not (_task.in_loops and replicas() and hasattr(loss, "call") and all(hasattr(each, "shape") for each in given)):
        return None
    is_of_rows = loss_functions.is_of_rows(loss, *given)
    if is_of_rows is False:
        print_once(
            f"the loss {loss.name!r} is not a mean over rows, so the numbers of {replicas()} parts of a batch are not those of one process"
        )
    return is_of_rows


def _reduce_weighted(
    real: Any, values: Any, sample_weight: Any = None, mask: Any = None, reduction: Any = MEANS[0], dtype: Any = None
) -> Any:
    """Let the loss of a part be the mean over its rows, also where a loss function gives one number, with which Keras does nothing."""
    shape, of_rows, view = tuple(getattr(values, "shape", ())), reduction in (None, "none"), one_replica.current()
    _here.losses += 1
    _here.rows += of_rows
    is_number = shape == () and not of_rows
    is_mean = _look_at_function(failure.caller())
    if is_number:
        _tell_of_one_number(reduction, is_known=is_mean is not None)
    elif reduction == "mean_with_sample_weight" and sample_weight is not None and _task.in_loops and replicas():
        print_once(f"reduction='mean_with_sample_weight' divides by each part's weights: {hint(replicas())}")
    if shape == (0,) and not of_rows and not _task.in_loops and replicas():
        print_once(
            "a loss of Keras for a part without rows is an empty tensor. fix: batch(…, drop_remainder=True), or tf.reduce_sum of the loss",
            in_each_task=True,
        )
    if is_number and reduction in MEANS and _is_wanted():
        made = _mean_of_number(values, sample_weight, mask, reduction, dtype)
    else:
        made = real(values, sample_weight, mask, reduction, dtype)
    if view is not None:
        made = view.sum_of_all(made) if reduction == "sum" else made
        view.made.append(made)
    return made


def _tell_of_one_number(reduction: str, *, is_known: bool) -> None:
    counts = "sum" if reduction == "sum" else "mean"
    if _is_wanted() and is_known:
        return
    if _is_wanted():
        print_once(
            f"a loss function that returns one number counts as the {counts} over its rows. "
            f"fix: return a number for each row, or {hint(replicas())}"
        )
    elif _task.in_loops and replicas():
        print_once(
            "a loss function that returns one number: Keras adds the replicas' gradients; keras.exact: true takes their mean"
            f"; {hint(replicas())}"
        )


def _mean_of_number(number: Any, weights: Any, mask: Any, reduction: str, dtype: Any) -> Any:
    """One number times the mean of the weights of all rows, as Keras has it in one process, and divided as Keras divides a mean."""
    import tensorflow as tf
    from keras import ops
    from keras.src.losses import loss

    number = ops.convert_to_tensor(number, dtype)
    if (weights is not None or mask is not None) and reduction != "mean_with_sample_weight":
        counted = loss.apply_mask(weights, mask, "float32", "sum")  # with this word: the weights times the mask
        left = tf.size(counted) if mask is None else tf.reduce_sum(tf.cast(mask, tf.float32))
        of_all = _sum_of_all(tf.stack([tf.reduce_sum(tf.cast(counted, tf.float32)), tf.cast(left, tf.float32)]))
        number *= tf.cast(tf.math.divide_no_nan(of_all[0], of_all[1]), number.dtype)
    return loss.scale_loss_for_distribution(number)


def _sum_of_all(own: Any) -> Any:
    """The sum of a tensor of each replica, without those of parts without rows."""
    import tensorflow as tf

    view = one_replica.current()
    counted = own if view is None or view.has_rows is None else tf.where(view.has_rows, own, tf.zeros_like(own))
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, counted)


def _apply_mask(real: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """Make the mean over the steps that are not masked that of the whole batch: Keras takes it of each part (keras/src/losses/loss.py)."""
    made = real(sample_weight, mask, dtype, reduction)
    if mask is None or not _task.in_loops or not replicas() or reduction not in MEANS[:2]:
        return made
    if not _is_wanted():
        print_once(f"a mask makes the loss a mean over unmasked steps of each part: {hint(replicas())}")
        return made
    import tensorflow as tf

    valid, steps = tf.reduce_sum(tf.cast(mask, tf.float32)), tf.cast(tf.size(mask), tf.float32)
    of_all = _sum_of_all(tf.stack([valid, steps]))
    return made * tf.cast(tf.math.divide_no_nan(valid * of_all[1], steps * of_all[0]), made.dtype)
