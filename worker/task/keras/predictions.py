"""`predict` of Keras 3 on several workers: each worker predicts its parts of the batches by itself, and all rows come together at the end.

Keras's own function (keras/src/backend/tensorflow/trainer.py) gathers the rows of each batch from all workers, by a collective that knows
few types, and traces the steps of one execution one after the other. Where a callback of the program gets the outputs of each batch, the
workers do gather them after each execution.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from .. import patches
from ..input import given
from ..patches.features import FIT
from . import parts, steps
from .feed import BatchIterator, Feed
from .fit import is_wanted


def mend() -> None:
    """Replace functions that a program may override. A replacement calls the original where it is not wanted."""
    patches.replace(FIT, "Trainer.make_predict_function", _make_predict_function)


def _make_predict_function(real: Any, self: Any, force: bool = False) -> None:
    if is_wanted(self.distribute_strategy):
        if self.predict_function is None or force:
            steps.leave_out_xla(self)
            self.predict_function = Function(self)
    else:
        real(self, force)


class Predictions:
    """Holds what one call of `predict` has predicted in this worker: for each step, the outputs and the number of rows of each replica."""

    def __init__(self, feed: Feed) -> None:
        self.is_counted = feed.num_batches is not None
        self.is_shown = feed.is_shown
        self.steps: list[Any] = []


class Function:
    """In place of Keras's function of `predict`. It takes the batches of one execution from the iterator itself."""

    def __init__(self, model: Any) -> None:
        import tensorflow as tf

        self._strategy = strategy = model.distribute_strategy
        self._least = [tf.constant(1, tf.int64), tf.constant(0, tf.int64)]

        def of_batch(data: Any) -> Any:
            data = steps.without_optionals(data)
            return strategy.experimental_local_results(
                strategy.run(lambda data: parts.run(model, model.predict_step, data, None), args=(data,))
            )

        def of_next(iterator: Any, least: Any) -> Any:
            with parts.counting_own(least):
                data = patches.theirs(iterator.get_next)
            return of_batch(data)

        self._of_batch = steps.in_graph(model, of_batch)
        self._of_next = steps.in_graph(model, of_next)
        self._of_next_of_all = steps.in_graph(model, lambda iterator: of_batch(patches.theirs(iterator.get_next)))

    @patches.guarded(FIT)
    def __call__(self, data: Any) -> Any:
        import tensorflow as tf

        if not isinstance(data[0], BatchIterator):  # that of predict_on_batch, or of a function of the program
            made = [self._of_batch(batch) for batch in data]
            if len(data) == 1 and not any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in tf.nest.flatten(data)):
                return made[0][0][0]  # each replica has predicted all rows
            return _tensors(_joined(self._strategy, made))
        predictions = data[0].batches.predictions
        begin = len(predictions.steps)
        for iterator in data:
            try:
                predictions.steps.append(self._next(iterator.real, predictions))
            except (StopIteration, tf.errors.OutOfRangeError):
                # Where Keras counts the batches, the last ones may have rows for other workers alone.
                if len(predictions.steps) == begin and (predictions.is_shown or not predictions.is_counted):
                    raise
                break
        return _tensors(_joined(self._strategy, predictions.steps[begin:])) if predictions.is_shown else ()

    def _next(self, iterator: Any, predictions: Predictions) -> Any:
        """The outputs of the next step. The first one has a part, if an empty one, in each worker: so each worker knows the form."""
        if predictions.is_shown:
            return self._of_next_of_all(iterator)
        return self._of_next(iterator, self._least[bool(predictions.steps)])


def predict(real: Any, model: Any, arguments: dict[str, Any]) -> Any:
    """Keras's loop over the data of `arguments`, a `Feed`. A program with a function of its own gets batches, as without orch."""
    model.make_predict_function()
    if not isinstance(model.predict_function, Function):
        return real(model, **arguments)
    feed = arguments["x"]
    feed.batches.predictions = predictions = Predictions(feed)
    found = real(model, **arguments)
    return found if predictions.is_shown else _joined(model.distribute_strategy, predictions.steps)


def are_shown(callbacks: Any, *names: str) -> bool:
    """True if a callback that is not Keras's own has a hook of one of these names, which gets the outputs or the logs of each batch."""
    from keras import tree

    given = tree.flatten(getattr(callbacks, "callbacks", callbacks)) if callbacks else []
    hooks = [getattr(each, name, None) for each in given for name in names]
    return any(hook is not None and not str(getattr(hook, "__module__", "")).startswith("keras.") for hook in hooks)


# --- the rows of all workers -----------------------------------------------------------------------


def _joined(strategy: Any, own: list[Any]) -> Any:
    """The outputs of all workers in steps, in the order of the data, in the structure that `predict_step` returns."""
    from keras.src import tree

    packed = [[_packed_part(*part) for part in step] for step in own]
    of_workers = [pickle.loads(each) for each in given.gather_bytes(strategy, pickle.dumps(packed))]
    in_order = []
    for step in range(max(map(len, of_workers))):
        # TensorFlow deals the parts of a batch to the workers in turn.
        replicas = zip(*(of_worker[step] for of_worker in of_workers if step < len(of_worker)), strict=True)
        in_order += [leaves for replica in replicas for has_rows, leaves in replica if has_rows]
    found = [_rows(of_one_output) for of_one_output in zip(*(in_order or [packed[0][0][1]]), strict=True)]
    return tree.pack_sequence_as(own[0][0][0], found)


def _packed_part(outputs: Any, rows: Any) -> tuple[bool, list[Any]]:
    """Return whether a part has rows, and its tensors as arrays, which can be sent: ragged and sparse tensors are several."""
    import tensorflow as tf
    from keras.src import tree

    def packed(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return "sparse", leaf.indices.numpy(), leaf.values.numpy(), leaf.dense_shape.numpy()
        leaf = leaf if has_rows or leaf.shape.rank == 0 else leaf[:0]
        if isinstance(leaf, tf.RaggedTensor):
            return "ragged", leaf.flat_values.numpy(), [splits.numpy() for splits in leaf.nested_row_splits]
        return leaf.numpy()

    has_rows = int(rows) > 0
    return has_rows, [packed(leaf) for leaf in tree.flatten(outputs)]


def _rows(every: Sequence[Any]) -> Any:
    """The rows of all parts of one output: an array, or what Keras makes of ragged and sparse tensors, and of rows of several shapes."""
    import numpy as np
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    kind = every[0][0] if isinstance(every[0], tuple) else "dense"
    if kind == "ragged":
        return tf.concat([tf.RaggedTensor.from_nested_row_splits(values, splits) for _, values, splits in every], 0)
    if kind == "sparse":
        return tf.sparse.concat(0, [tf.SparseTensor(*arrays) for _, *arrays in every])
    if len({part.shape[1:] for part in every}) == 1:
        return np.concatenate([np.atleast_1d(part) for part in every])
    return trainer.convert_to_np_if_not_ragged(trainer.potentially_ragged_concat([tf.constant(part) for part in every]))


def _tensors(outputs: Any) -> Any:
    """Return what Keras's own function returns."""
    import tensorflow as tf
    from keras.src import tree

    return tree.map_structure(
        lambda rows: tf.convert_to_tensor(rows) if hasattr(rows, "dtype") and not tf.is_tensor(rows) else rows, outputs
    )
