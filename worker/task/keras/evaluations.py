"""`evaluate` of Keras 3 on several workers: each worker takes some batches together, so that the workers tell each other the numbers of
rows of all of them in one message, and the metrics in another one. Two messages for each batch take longer than most batches do.

Keras asks for one execution after the other. It gets the logs of the last batch of those that were taken together, which its bar shows.
Where a callback of the program sees the batches, each step is one by itself (see `steps`).
"""

from __future__ import annotations

import time
from typing import Any

from .. import patches
from ..input import given
from . import parts, stops
from .rows import StandingRow, count

MOST = 32
"""The most batches that are taken together."""
BYTES = 1 << 26
"""The most memory of a worker for them."""
TOGETHER_S = 0.1
"""About how long they may take: the bar stands still for so long."""


class Evaluation:
    """Holds one call of `evaluate`."""

    def __init__(self, left: float) -> None:
        self.left, self.ready = left, 0
        """How many steps are still to come, if Keras knows it; how many were taken for which Keras has not asked."""
        self.logs: Any = None


def begin(feed: Any, steps: int | None, steps_per_execution: int) -> None:
    """Have the batches of this evaluation taken together, where no callback sees them. `steps`: what the program says."""
    from keras import config

    most = getattr(config, "max_steps_per_epoch", lambda: None)()
    left = min(filter(None, (steps or feed.num_batches, most)), default=float("inf"))
    executions = -(-left // steps_per_execution)
    feed.batches.evaluation = None if feed.is_shown else Evaluation(executions * steps_per_execution)


class Steps:
    """The steps of `evaluate`. `of_replicas` runs one without a message; `of_all` makes the logs of all workers of what it gives."""

    def __init__(self, strategy: Any, standing: StandingRow, first: Any, of_replicas: Any, of_all: Any, in_graph: Any) -> None:
        """`first`: see `parts.rows_of_first`."""
        self._strategy, self._standing, self._first, self._of_replicas, self._of_all = strategy, standing, first, of_replicas, of_all
        self._next = in_graph(self._next_in_graph)
        self._length = self._wanted = 1
        """How many batches are taken together; how many this worker wants."""

    def run(self, iterator: Any, steps: int) -> Any:
        """The logs after so many steps, or later ones."""
        import tensorflow as tf

        run: Evaluation = iterator.batches.evaluation
        while run.ready < steps and run.left:
            self._take(iterator, run)
        if not run.ready:
            raise tf.errors.OutOfRangeError(None, None, "the data have ended")
        run.ready -= min(steps, run.ready)
        return run.logs

    def _take(self, iterator: Any, run: Evaluation) -> None:
        """Take the next batches of all workers together."""
        import tensorflow as tf

        began, length = time.monotonic(), int(min(self._length, run.left))
        batches, facts = zip(*(self._next(iterator.real) for _ in range(length)), strict=True)
        rows, replicas, sizes = zip(*(each.numpy().tolist() for each in facts), strict=True)
        wanted, rest = min(self._wanted, BYTES // max(1, *sizes)), [0] * (MOST - length)
        told = zip(*given.of_all(self._strategy, wanted, *rows, *rest, *replicas, *rest), strict=True)
        self._length = max(1, min(4 * self._length, MOST, *next(told)))
        sums = [sum(of_workers) for of_workers in told]
        totals = [total for total, with_data in zip(sums[:length], sums[MOST:], strict=False) if with_data]
        for batch, total in zip(batches, totals, strict=False):
            packed = self._of_replicas((batch, tf.constant(total, tf.int64)), self._is_as_first(total))
        if totals:
            run.logs, wishes = self._of_all(packed)
            stops.hear(wishes)
        run.ready += len(totals)
        run.left = run.left - length if len(totals) == length else 0
        self._wanted = int(TOGETHER_S / (time.monotonic() - began) * length)

    def _is_as_first(self, total: int) -> Any:
        import tensorflow as tf

        if self._first is None:
            return None
        if not self._first.numpy():
            self._first.assign(total)
        return tf.constant(total == int(self._first.numpy()))

    def _next_in_graph(self, iterator: Any) -> tuple[Any, Any]:
        """The next batch of this worker, of which a graph knows the form, and the number of its rows, its replicas with data, its bytes."""
        import tensorflow as tf

        with parts.counting_own(tf.constant(1, tf.int64)) as with_data:
            data = patches.theirs(iterator.get_next)
        local = self._strategy.experimental_local_results
        facts = tf.add_n(local(patches.theirs(self._strategy.run, _facts, args=(data,))))
        replicas = with_data()
        facts = tf.stack([facts[0], tf.constant(1, tf.int64) if replicas is None else replicas, facts[1]])
        return tf.experimental.Optional.from_value(data), facts


def _facts(data: Any) -> Any:
    """In a replica: the rows of its part, and about how many bytes they have."""
    import tensorflow as tf

    rows = count(data)
    tensors = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(leaf)]
    sizes = [tf.size(leaf, out_type=tf.int64) * (leaf.dtype.size or 64) for leaf in tensors if leaf.dtype != tf.variant]
    return tf.stack([tf.constant(1, tf.int64) if rows is None else rows, tf.add_n(sizes) if sizes else tf.constant(0, tf.int64)])
