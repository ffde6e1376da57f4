"""Metrics of Keras 3 with several workers: those made outside of the strategy's scope count all rows, and so do the logs of each step.

A metric that is made outside of the scope has ordinary variables: each worker counts its own rows in them, and shows its own value.
(Keras 2 refuses such a metric.) And Keras's logs of a step are the mean of the replicas' own values, which is wrong for metrics that are
no means, such as AUC: here they come from the sums of the replicas' variables, with one message between the workers in place of one for
each log. A metric of the program, which may be no sum, sees the rows of all replicas.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections.abc import Iterator
from typing import Any

from .. import patches
from ..patches.features import FIT
from . import one_replica, parts

MOST = 1 << 16
"""The most numbers that the variables of metrics may have to be added up in each step. Above this, the logs of a step are means, as in
Keras."""


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
    """While this is entered in a replica that has the whole batch, only the first replica counts the rows."""
    import tensorflow as tf

    found = {id(variable): variable.value for variable in model.metrics_variables}.values()
    sums = [each._get_on_device_or_primary() for each in found if each.aggregation == tf.VariableAggregation.SUM]
    before = [each.read_value() for each in sums]
    yield
    is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    for each, value in zip(sums, before, strict=True):
        each.assign(tf.where(is_first, each, value))


@contextlib.contextmanager
def rows_gathered(model: Any) -> Iterator[None]:
    """While this is entered, metrics of the program see the rows of all replicas. Enter this outside of the code of the replicas.

    Keras adds up the variables of a metric over the replicas, which is wrong for a maximum, a running mean or a constant.
    """
    update = patches.guarded(FIT)(_update)
    with contextlib.ExitStack() as stack:
        for metric in (metric for metric in parts.metrics_of(model) if _is_own(metric)):
            stack.enter_context(one_replica.replaced(metric, "update_state", functools.partial(update, metric, metric.update_state)))
        yield


def _is_own(metric: Any) -> bool:
    """True if the program says what a metric makes of rows: by a class, or by a function."""
    made_by = getattr(metric, "_fn", None) or type(metric).update_state
    return not str(getattr(made_by, "__module__", "keras.")).startswith("keras.")


def _update(metric: Any, real: Any, *args: Any, **kwargs: Any) -> Any:
    """Update a metric from the rows of all replicas, where these can be gathered. The first replica keeps the state, the others zeros."""
    import tensorflow as tf
    from keras import tree
    from keras.metrics import MeanMetricWrapper

    replica: Any = tf.distribute.get_replica_context()
    given = (args, kwargs)
    leaves = [leaf for leaf in tree.flatten(given) if leaf is not None]
    can_gather = leaves and all(
        tf.is_tensor(leaf) and leaf.shape.rank and leaf.dtype.is_numpy_compatible and leaf.dtype != tf.string for leaf in leaves
    )
    is_mean = isinstance(metric, MeanMetricWrapper)
    if not can_gather or (is_mean and _is_of_rows(metric, *args, **kwargs)):
        return _update_from_part(metric, real, *args, **kwargs)
    args, kwargs = tree.map_structure(lambda leaf: None if leaf is None else replica.all_gather(_with_rows(leaf), axis=0), given)
    if is_mean:  # a mean over batches: all replicas have the same, and so has the mean
        with one_replica.seen(one_replica.View(None)):
            return patches.theirs(real, *args, **kwargs)
    # The others have one value in all replicas.
    state = [variable for variable in metric.variables if variable.value.dtype != tf.string and variable.aggregation == "sum"]
    for kind in dict.fromkeys(variable.value.dtype for variable in state):  # TensorFlow adds up no numbers of several types together
        of_kind = [variable for variable in state if variable.value.dtype == kind]
        for variable, value in zip(of_kind, replica.all_reduce("SUM", [tf.identity(each.value) for each in of_kind]), strict=True):
            variable.assign(value)
    before, part = [tf.identity(variable.value) for variable in state], parts.current()
    with parts.as_part(None), one_replica.seen(one_replica.View(None)):
        made = patches.theirs(real, *args, **kwargs)
    for variable, old in zip(state, before, strict=True):
        value = tf.where(True if part is None else part.has_any, tf.convert_to_tensor(variable.value), old)
        variable.assign(tf.where(replica.replica_id_in_sync_group == 0, value, tf.zeros_like(value)))
    return made


def _update_from_part(metric: Any, real: Any, *args: Any, **kwargs: Any) -> Any:
    """Update a metric from this replica's part: a row that stands in for an empty part does not count."""
    import tensorflow as tf

    part = parts.current()
    before = [(variable, variable.value()) for variable in parts.on_this_replica([each.value for each in metric.variables])]
    made = patches.theirs(real, *args, **kwargs)
    if part is not None:
        tf.cond(part.rows > 0, lambda: tf.constant(0), lambda: parts.put_back(before))
    return made


def _is_of_rows(metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> bool:
    """True if the function of a metric gives a number for each row, and not one for all, or for each output."""
    shape = tuple(getattr(patches.theirs(metric._fn, y_true, y_pred, **metric._fn_kwargs), "shape", (None,)))
    return shape != () and shape[0] in (None, y_true.shape[0])


def _with_rows(leaf: Any) -> Any:
    """Nothing of a row that stands in for an empty part."""
    import tensorflow as tf

    part = parts.current()
    if part is None:
        return leaf
    # TensorFlow's gather ends the process where no one has a row.
    return leaf[: tf.where(part.rows > 0, tf.shape(leaf, out_type=tf.int64)[0], tf.where(part.has_any, tf.constant(0, tf.int64), 1))]


class Packing:
    """Puts all numbers that make the logs of a step into one tensor in each replica, and makes the logs from the sum over all replicas."""

    def __init__(self, model: Any) -> None:
        self._model, is_of_keras = model, _has_keras_steps(model)
        self._state = list({id(variable): variable for variable in model.metrics_variables}.values())
        numbers = sum(variable.shape.num_elements() for variable in self._state)
        # Keras itself takes the metrics for the logs of its own steps at the end of an epoch.
        if (is_of_keras and numbers > MOST) or not all(variable.aggregation in ("sum", "mean") for variable in self._state):
            self._state = []
        self._outputs: Any = None
        """What the step has returned, in the graph of a replica. None: it cannot be packed."""
        self._compared: list[tuple[tuple[str, ...], Any]] | None = None if is_of_keras else []
        """The logs of a step of the program that may be the values of metrics, each with the metric that has made it, or None: that of the
        same name; a program may return its own loss by a metric's name. None: the steps are Keras's, and their logs are metrics. A log has
        several names where a step gives what all compiled metrics give by one.
        """
        self._made: list[tuple[Any, Any]] = []
        """What metrics have given in the step, each with its metric."""

    @contextlib.contextmanager
    def results_seen(self) -> Iterator[None]:
        """While this is entered, orch knows what each metric gives: a step may show it by another name. Enter it outside of replicas."""
        with contextlib.ExitStack() as stack:
            for metric in parts.metrics_of(self._model) if self._compared is not None else ():
                stack.enter_context(one_replica.replaced(metric, "result", functools.partial(self._result, metric, metric.result)))
            yield

    def _result(self, metric: Any, real: Any) -> Any:
        made = patches.theirs(real)
        self._made.append((made, metric))
        return made

    def pack(self, wish: Any, outputs: Any, rows: Any, total: Any) -> Any:
        """In a replica: the outputs of a step and the metrics' variables as one tensor; or the outputs alone, where they are no numbers.
        `wish`: a number of this worker, which is added up with them. `rows`, `total`: of this part, and of all (see `parts.run`)."""
        import tensorflow as tf
        from keras.src import tree

        outputs = tree.map_structure(self._shown, outputs)
        leaves = [leaf for leaf in tree.flatten(outputs) if leaf is not None]
        if not all(
            tf.is_tensor(leaf) and leaf.shape.is_fully_defined() and (leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool)
            for leaf in leaves
        ):
            return outputs, wish
        self._outputs, has_rows, share, zero = outputs, rows > 0, parts.share_of(rows, total), tf.constant(0, tf.float64)
        # A mean of a part has the share of its rows, and what is the same in all parts may have it.
        logs = [_flat(leaf) if share is None else _flat(leaf) * share for leaf in leaves]
        values = [*(tf.where(has_rows, log, zero) for log in logs), *(_flat(variable.value) for variable in self._state)]
        return tf.concat([_flat(wish), *self._compare(outputs, has_rows), *values], 0)

    def _shown(self, leaf: Any) -> Any:
        """Return what a step returns; of a variable, its value, and of a number of Python, a tensor."""
        import tensorflow as tf

        made = tf.convert_to_tensor(leaf) if hasattr(leaf, "assign") or isinstance(leaf, numbers.Number) else leaf
        self._made += [(made, metric) for each, metric in self._made if each is leaf and made is not leaf]
        return made

    def _compare(self, outputs: Any, has_rows: Any) -> list[Any]:
        """In a replica: 1 for each log that is the value of its metric, and 0 for another one. A replica without rows has counted a row
        that stands in, which its metrics have not: it cannot tell, and leaves it to the others."""
        import tensorflow as tf

        if self._compared is None or not self._state or not isinstance(outputs, dict):
            return []
        logs = {path: leaf for path, leaf in _logs(outputs) if tf.is_tensor(leaf)}
        sources = [(path, next((metric for made, metric in self._made if made is leaf), None)) for path, leaf in logs.items()]
        found = self._values(sources)
        self._compared = [(path, metric) for path, metric in sources if path in found and logs[path].shape == found[path].shape]
        pairs = [(_flat(logs[path]), _flat(found[path])) for path, _ in self._compared]
        equal = [
            tf.reduce_all((abs(one - other) <= 1e-6 * abs(other)) | (tf.math.is_nan(one) & tf.math.is_nan(other))) for one, other in pairs
        ]
        return [_flat(each | ~has_rows) for each in equal]

    def _values(self, sources: list[tuple[tuple[str, ...], Any]]) -> dict[tuple[str, ...], Any]:
        """What the metrics of these logs give now, by log."""
        import tensorflow as tf

        named = {path[-1]: value for path, value in _logs(patches.theirs(self._model.get_metrics_result))}
        given = [(path, named.get(path[-1]) if metric is None else patches.theirs(metric.result)) for path, metric in sources]
        return {path: tf.convert_to_tensor(value) for path, value in given if value is not None}

    def unpack(self, strategy: Any, packed: Any) -> tuple[Any, Any]:
        """The logs of a step, and the sum of the wishes; the same in all workers."""
        import tensorflow as tf
        from keras.src import backend, tree

        if self._outputs is None:
            outputs, wish = packed
            logs = tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), outputs)
            return logs, strategy.reduce("SUM", wish, axis=None)
        numbers = _Numbers(strategy.reduce(tf.distribute.ReduceOp.SUM, packed, axis=None))
        wishes = numbers.take((), tf.float64)
        replicas = strategy.num_replicas_in_sync
        are_metrics = [tf.equal(numbers.take((), tf.float64), replicas) for _ in self._compared or ()]
        logs = tree.map_structure(lambda leaf: None if leaf is None else numbers.take(leaf.shape, leaf.dtype, replicas), self._outputs)
        if not self._state or not isinstance(logs, dict):
            return logs, wishes
        values = [numbers.take(each.shape, each.value.dtype, replicas if each.aggregation == "mean" else 1) for each in self._state]
        with backend.StatelessScope(state_mapping=list(zip(self._state, values, strict=True))):
            if self._compared is None:  # the rule of Keras (`Trainer._get_metrics_result_or_logs`)
                of_all = tree.map_structure(tf.convert_to_tensor, patches.theirs(self._model.get_metrics_result))
                return of_all if of_all.keys() == logs.keys() else logs, wishes
            found = self._values(self._compared)
        for (path, _), is_one in zip(self._compared, are_metrics, strict=True):
            own = functools.reduce(dict.__getitem__, path[:-1], logs)
            own[path[-1]] = tf.where(is_one, tf.cast(found[path], own[path[-1]].dtype), own[path[-1]])
        return logs, wishes


def _logs(outputs: dict[str, Any], *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Logs, or what metrics give, each with the names that lead to it: one metric may give several numbers."""
    for name, leaf in outputs.items():
        yield from _logs(leaf, *names, name) if isinstance(leaf, dict) else [((*names, name), leaf)]


def _has_keras_steps(model: Any) -> bool:
    from keras import Model

    return all(getattr(type(model), name) is getattr(Model, name) for name in ("train_step", "test_step", "compute_metrics"))


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
