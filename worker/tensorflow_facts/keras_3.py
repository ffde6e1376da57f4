"""Releases of Keras 3 that are wrong on several replicas: for the doctor, and for a line in the tasks. orch does not mend these releases.

Each release was compared with one process (docs/keras.md). Until 3.4, `TFOptimizer._distributed_tf_update_step` of
keras/src/backend/tensorflow/optimizer.py asks for the sum of the gradients where TensorFlow has no replica's context, and gets no sum.
"""

from __future__ import annotations

from .releases import OLDEST_KERAS

_SUMS, _MEANS = (3, 5), (3, 8)
"""The first releases that add up the gradients of the replicas, and that divide the loss by the number of replicas."""


def release(version: str) -> tuple[int, ...]:
    """``3.4.1`` as (3, 4). A version that cannot be read counts as new."""
    words = version.split(".")[:2]
    return tuple(int(word) for word in words) if len(words) == 2 and all(word.isdigit() for word in words) else (4,)


FIRST_KNOWN = release(OLDEST_KERAS)
"""The first release whose `fit` orch mends."""


def wrong_training(version: str) -> str:
    """What a release does wrongly on several replicas with each training loop; empty if it trains rightly."""
    if not (3,) <= release(version) < _SUMS:
        return ""
    what = "its optimizers do not add up the gradients of the replicas, so the weights of the workers differ"
    return f"Keras {version} TRAINS WRONGLY on several workers or replicas: {what}, also in a training loop of your own"


def wrong_fit(version: str) -> str:
    """What `fit` of a release does wrongly on several replicas; empty if orch knows it."""
    if not (3,) <= release(version) < FIRST_KNOWN:
        return ""
    how = "adds the gradients of the replicas and does not take their mean" if release(version) < _MEANS else "counts wrongly"
    return f"fit() of Keras {version} {how}: losses and metrics are those of only some replicas"
