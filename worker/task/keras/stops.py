"""Stops of a training of Keras 3 with several workers: all workers stop, whatever code has set `stop_training`.

Most callbacks stop all workers after the same step. So a worker that wants to stop asks the others by TensorFlow's coordination service,
which costs nothing in all other steps: if all want to stop, they do at once. If others have gone on, they wait in the next step for this
worker, which takes it, too: its wish travels with the numbers that a step adds up anyway, and all stop after this step.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

WAIT_S = 5.0
"""How long a worker waits for the wishes of the others: they have ended the same step."""


class _State:
    """Holds the wishes to stop."""

    own = 0.0
    """1.0: this worker wants to stop, and the others do not know it yet."""
    heard: Any = None
    """How many replicas wanted to stop before the last step, as a tensor."""


_wishes = _State()


class Wish:
    """Holds what this worker tells the others in a step. The graph reads a variable: an argument more would cost each step some 2 %."""

    def __init__(self) -> None:
        import tensorflow as tf
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        with tf.init_scope(), tf.device("CPU:0"):
            self._told, self._variable = 0.0, ResourceVariable(tf.zeros((), tf.float64), trainable=False)

    def prepare(self) -> None:
        """Take up the wish of this worker. Call this before each step, outside of graphs."""
        if self._told != _wishes.own:
            self._variable.assign(_wishes.own)
            self._told = _wishes.own

    def read(self) -> Any:
        return self._variable.read_value()


def hear(wishes: Any) -> None:
    """Keep the sum of what all replicas have carried into a step."""
    _wishes.heard = wishes


def carry(is_wanted: bool) -> None:
    _wishes.own, _wishes.heard = float(is_wanted), None


def is_heard() -> bool:
    """True if any worker carried a wish into the last step."""
    return _wishes.heard is not None and float(_wishes.heard) > 0


def do_all_want(strategy: Any, place: str) -> bool:
    """True if all workers want to stop at this place of the training. Only those that want to stop make this call.

    The first answer that is written counts for all: a worker that has waited for too long may be wrong about the others.
    """
    from tensorflow.python.eager import context

    service = context.context()
    workers, own = int(strategy.extended._num_workers), int(strategy.extended._id_in_cluster)
    key, until = f"orch/stop/{place}", time.monotonic() + WAIT_S

    def has(name: str) -> bool:
        left = int(1000 * (until - time.monotonic()))
        return left > 0 and bool(_read(service, f"{key}/{name}", left))

    _write(service, f"{key}/{own}", "yes")
    _write(service, f"{key}/all", "yes" if all(has(str(worker)) for worker in range(workers)) else "no")
    return _read(service, f"{key}/all", 600_000) == "yes"  # it is there: a slow answer must not make this worker decide alone


def _write(service: Any, key: str, value: str) -> None:
    """Write a value, if the key has none."""
    import tensorflow as tf

    with contextlib.suppress(tf.errors.AlreadyExistsError):
        service.set_config_key_value(key, value)


def _read(service: Any, key: str, wait_ms: int) -> str:
    import tensorflow as tf

    try:
        return str(service.get_config_key_value(key, wait_ms))
    except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
        return ""
