"""Metrics of Keras 3 with several workers: those made outside of the strategy's scope count all rows, and so do the logs of each step.

A metric that is made outside of the scope has ordinary variables: each worker counts its own rows in them, and shows its own value.
(Keras 2 refuses such a metric.) And Keras's logs of a step are the mean of the replicas' own values, which is wrong for metrics that are
no means, such as AUC: here they come from the sums of the replicas' variables, with one message between the workers in place of one for
each log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import patches

MOST = 1 << 16
"""The most numbers that the variables of metrics may have to be added up in each step. Above this, the logs of a step are means, as in
Keras.
"""


def adopt(model: Any, strategy: Any) -> None:
    """Give the metrics of a model that were made outside of the strategy's scope the variables that they would have inside."""
    import tensorflow as tf

    for variable in model.metrics_variables:
        own = variable._value
        if isinstance(own, tf.Variable) and not isinstance(own, tf.distribute.DistributedValues):
            with tf.init_scope():
                value = own.numpy()
                with strategy.scope():
                    variable._initialize(value)


@contextlib.contextmanager
def counted_once(model: Any) -> Iterator[None]:
    """While this is entered in a replica, whose part is the whole batch, only the first replica counts the rows: the sums of the replicas'
    variables are the metrics.
    """
    import tensorflow as tf

    found = {id(variable): variable.value for variable in model.metrics_variables}.values()
    sums = [each._get_on_device_or_primary() for each in found if each.aggregation == tf.VariableAggregation.SUM]
    before = [each.read_value() for each in sums]
    yield
    is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    for each, value in zip(sums, before, strict=True):
        each.assign(tf.where(is_first, each, value))


class Packing:
    """Puts all numbers that make the logs of a step into one tensor in each replica, and makes the logs from the sum over all replicas."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._state = list({id(variable): variable for variable in model.metrics_variables}.values())
        numbers = sum(variable.shape.num_elements() for variable in self._state)
        if numbers > MOST or not all(variable.aggregation in ("sum", "mean") for variable in self._state):
            self._state = []
        self._outputs: Any = None
        """What the step has returned, in the graph of a replica. None: it cannot be packed."""

    def pack(self, outputs: Any, rows: Any) -> Any:
        """In a replica: the outputs of a step and the metrics' variables as one tensor; or the outputs alone, where they are no numbers."""
        import tensorflow as tf
        from keras.src import tree

        leaves = [leaf for leaf in tree.flatten(outputs) if leaf is not None]
        if not all(
            tf.is_tensor(leaf) and leaf.shape.is_fully_defined() and (leaf.dtype.is_floating or leaf.dtype.is_integer) for leaf in leaves
        ):
            return outputs
        self._outputs, has_rows = outputs, rows > 0
        zero = tf.constant(0, tf.float64)
        values = [*(tf.where(has_rows, _flat(leaf), zero) for leaf in leaves), *(_flat(variable.value) for variable in self._state)]
        return tf.concat([_flat(has_rows), *values], 0)

    def unpack(self, strategy: Any, packed: Any) -> Any:
        """The logs of a step, the same in all workers."""
        import tensorflow as tf
        from keras.src import tree

        if self._outputs is None:
            return tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), packed)
        numbers = _Numbers(strategy.reduce(tf.distribute.ReduceOp.SUM, packed, axis=None))
        parts = tf.maximum(numbers.take((), tf.float64), 1)
        logs = tree.map_structure(lambda leaf: None if leaf is None else numbers.take(leaf.shape, leaf.dtype, parts), self._outputs)
        return self._of_metrics(numbers, strategy.num_replicas_in_sync, logs) if self._state and isinstance(logs, dict) else logs

    def _of_metrics(self, numbers: _Numbers, replicas: int, logs: dict[str, Any]) -> dict[str, Any]:
        """The metrics of all rows, where the logs are those of the metrics: the rule of Keras (`Trainer._get_metrics_result_or_logs`)."""
        import tensorflow as tf
        from keras.src import backend

        values = [numbers.take(each.shape, each.value.dtype, replicas if each.aggregation == "mean" else 1) for each in self._state]
        with backend.StatelessScope(state_mapping=list(zip(self._state, values, strict=True))):
            found = {name: tf.convert_to_tensor(value) for name, value in patches.theirs(self._model.get_metrics_result).items()}
        return found if found.keys() == logs.keys() else logs


class _Numbers:
    """The numbers of one tensor, taken one value after the other."""

    def __init__(self, numbers: Any) -> None:
        self._numbers, self._place = numbers, 0

    def take(self, shape: Any, dtype: Any, divisor: Any = 1) -> Any:
        import tensorflow as tf

        begin, self._place = self._place, self._place + tf.TensorShape(shape).num_elements()
        value = tf.reshape(self._numbers[begin : self._place], shape) / tf.cast(divisor, tf.float64)
        return tf.cast(value if dtype.is_floating else tf.round(value), dtype)


def _flat(value: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(tf.cast(value, tf.float64), [-1])
