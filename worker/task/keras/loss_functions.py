"""Tries whether the loss of a batch is that of its parts: the graph of each loss function gets rows of random numbers, once.

It is so if the function gives a number for each row, or the mean of such numbers. It is not so if the function compares rows, as for
in-batch negatives, or divides by a sum over all rows, as a Dice loss does.

The function itself is called once more, to be traced, as TensorFlow does whenever shapes change. A graph that would change a variable,
draw random numbers or call Python is not run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROWS, FIRST = 6, 2
LABELS = (0, 1), (-100, -1, 0, 1)
"""Classes, or numbers; and what may stand for no label: a function of the program that gives one number may leave out such rows."""
MOST = 1 << 20
"""The most numbers that a row may have."""
_OPEN = 3
"""The length along a dimension that is not known."""
_HARMLESS = {"ReadVariableOp", "Assert"}
"""Operations that TensorFlow calls stateful, and that change nothing."""
_KNOWN = "_orch_is_of_rows"
"""The attribute of a loss that was looked at."""


def is_of_rows(loss: Any, y_true: Any, y_pred: Any) -> bool | None:
    """True if the loss of a batch is that of its parts; False if not; None if this is not known. Called in the graph of a replica."""
    if _KNOWN not in vars(loss):
        # In a thread of its own there is neither a graph nor a replica.
        with ThreadPoolExecutor(1) as thread:
            vars(loss)[_KNOWN] = thread.submit(_look, loss, y_true, y_pred).result()
    found: bool | None = vars(loss)[_KNOWN]
    return found


def _look(loss: Any, y_true: Any, y_pred: Any) -> bool | None:
    import tensorflow as tf

    try:
        given = [tf.TensorSpec([None, *each.shape[1:]], loss.dtype) for each in (y_true, y_pred)]
        function = tf.function(loss.call, autograph=False).get_concrete_function(*given)  # Keras does not convert it either
    except Exception:  # such a batch is not for this function
        return None
    if any(op.op_def.is_stateful and op.type not in _HARMLESS for op in function.graph.get_operations()):
        return None
    made_by = str(getattr(getattr(loss, "fn", type(loss)), "__module__", ""))
    found = [_with(labels, loss, function, given, made_by.startswith("keras.")) for labels in LABELS]
    return False if False in found else True if True in found else None


def _with(labels: tuple[int, ...], loss: Any, function: Any, given: Any, is_of_keras: bool) -> bool | None:
    import numpy as np
    import tensorflow as tf

    try:
        shapes = [[ROWS, *(size or _OPEN for size in each.shape[1:])] for each in given]
        if max(map(np.prod, shapes)) > ROWS * MOST:
            return None
        draws: Any = np.random.default_rng(0)
        numbers = [draws.choice(labels, shapes[0]), draws.uniform(0.1, 0.9, shapes[1])]

        def of(rows: slice) -> Any:
            return np.asarray(function(*(tf.constant(each[rows], loss.dtype) for each in numbers)), "float64")

        first, again, rest, whole = of(slice(FIRST)), of(slice(FIRST)), of(slice(FIRST, None)), of(slice(None))
    except Exception:  # such numbers are not for this function
        return None
    is_meant = labels == LABELS[0] or not (whole.shape or is_of_keras)
    if not (is_meant and np.isfinite(whole).all() and np.allclose(first, again)):
        return None
    if whole.shape:
        return bool(len(whole) == ROWS and np.allclose(whole, np.concatenate([first, rest]), rtol=1e-4, atol=1e-6))
    share = 1.0 if loss.reduction == "sum" else FIRST / ROWS
    return bool(np.allclose(whole, share * first + (1.0 if loss.reduction == "sum" else 1 - share) * rest, rtol=1e-4, atol=1e-6))
