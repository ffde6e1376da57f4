"""The data of one call of `fit`, `evaluate` or `predict` of Keras 3, as an adapter of orch's own, which Keras takes for `x`
(keras/src/trainers/data_adapters/__init__.py, "Allow passing a custom data adapter").

It wraps the adapter that Keras makes of the program's data. So Keras's loops see an epoch that is as long in all workers, and data that
TensorFlow has divided already. Keras builds the model from the shapes of the data: no batch is taken for this.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from .. import patches
from ..input import given, shuffle_order
from ..patches.features import LOOPS
from ..patches.import_hooks import print_once
from . import data

_NOT_EAGER = (
    "Keras 3 trains only with eager execution, which the program has turned off. "
    "fix: leave out tf.compat.v1.disable_eager_execution() and disable_v2_behavior()"
)


def make(*args: Any, **kwargs: Any) -> Feed:
    """A `Feed` that is an adapter of Keras."""
    made: Feed = _kinds()[0](*args, **kwargs)
    return made


@functools.cache
def _kinds() -> tuple[Any, Any]:
    """The classes `Feed` and `Batches`, as Keras takes them."""
    import tensorflow as tf
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    return type("Feed", (Feed, DataAdapter), {}), type("Batches", (Batches, tf.distribute.DistributedDataset), {})


class Feed:
    """Keras's adapter of the program's data, which TensorFlow has divided, and the number of steps that all workers take."""

    def __init__(
        self, strategy: Any, x: Any, *, shuffle: Any = False, is_read: bool = False, is_shown: bool = False, **options: Any
    ) -> None:
        """`options`: of Keras's adapter. `is_read`: Keras itself takes batches from the iterator. `is_shown`: callbacks get outputs."""
        import tensorflow as tf
        from keras.src.trainers.data_adapters import get_data_adapter

        if not tf.executing_eagerly():
            raise patches.refusal(RuntimeError(_NOT_EAGER))
        with data.arrays_in_one_order(strategy, shuffle):
            self.adapter = patches.theirs(get_data_adapter, x=x, shuffle=shuffle, **options)
            dataset = patches.theirs(self.adapter.get_tf_dataset)
        if not isinstance(dataset, tf.distribute.DistributedDataset):
            dataset = patches.theirs(strategy.experimental_distribute_dataset, dataset)
        self.distributed, self.is_even, self._num_batches = dataset, False, self.adapter.num_batches
        self.is_shown = is_shown
        if shuffle_order.has_several_workers(strategy):
            self._agree(strategy)
        self.batches = _kinds()[1](dataset, is_even=self.is_even, is_read=is_read)

    def _agree(self, strategy: Any) -> None:
        """Make each epoch as long as that of the worker with the most batches: TensorFlow gives the other workers empty batches."""
        own = data.steps_of_epoch(self._num_batches, self.distributed, strategy)
        rows = data.rows_of_parts(self.distributed, strategy)
        told = given.of_all(strategy, -1 if own is None else int(own), rows, int(self.is_shown), *given.facts(self.distributed, strategy))
        counts, parts, shown, *_ = zip(*told, strict=True)
        self.is_even, self.is_shown = rows > 0 and set(parts) == {rows}, any(shown)
        self._num_batches = max(counts) if min(counts) >= 0 else None
        given.tell([facts for _, _, _, *facts in told])

    def get_tf_dataset(self) -> Any:
        return self.batches

    @property
    def num_batches(self) -> Any:
        return self._num_batches

    @property
    def batch_size(self) -> Any:
        return self.adapter.batch_size

    def on_epoch_begin(self) -> None:
        """Keras begins an epoch also to build the model. A PyDataset with workers would read ahead for this, and keep the batches."""
        self.batches.begin_epoch = self.adapter.on_epoch_begin

    def on_epoch_end(self) -> None:
        self.batches.begin_epoch = None
        self.adapter.on_epoch_end()

    def of_first_replica(self) -> Any:
        """The shapes of a batch of one replica."""
        return _of_replica(self.distributed.element_spec)


class Batches:
    """Data that are divided already: Keras takes them as they are."""

    def __init__(self, distributed: Any, *, is_even: bool, is_read: bool) -> None:
        self.distributed, self.is_even, self.is_read = distributed, is_even, is_read
        self.predictions: Any = None
        """In `predict`: what is predicted (see `predictions`), by a function that takes the batches itself."""
        self.evaluation: Any = None
        """In `evaluate`: the batches that are taken together (see `evaluations`). None: each is a step by itself."""
        self.asked = 0
        """How many iterators Keras has asked for in all."""
        self.begin_epoch: Any = None
        """What the program's data do before the first batch of an epoch, which no one has taken so far."""
        self.waiting = 0
        """How many iterators Keras has asked for since one has begun: each would draw an order of the data."""
        self.others: tuple[Batches, ...] = ()
        """The other data of the same `fit`: they may be parts of one dataset, whose shuffle draws one order after the other."""
        self._newest: Any = None
        """The iterator that Keras has asked for last, as a weak reference."""

    @property
    def element_spec(self) -> Any:
        return self.distributed.element_spec

    def __iter__(self) -> BatchIterator:
        self.waiting += 1
        self.asked += 1
        made = BatchIterator(self)
        self._newest = weakref.ref(made)
        return made

    def begin(self) -> Any:
        """An iterator of TensorFlow."""
        for other in self.others:
            other.catch_up()
        return self._begin()

    def catch_up(self) -> None:
        """Draw the orders for which Keras has asked, before anything else draws one of the same dataset."""
        if self.waiting and shuffle_order.draws_once(self.distributed):
            made, newest = self._begin(), self._newest()
            if newest is not None:
                newest.take(made)

    @patches.guarded(LOOPS)
    def _begin(self) -> Any:
        """The data begin as often as without orch, where each beginning draws an order."""
        for _ in range(self.waiting):
            made = patches.theirs(iter, self.distributed)
        self.waiting = 0
        return made


class BatchIterator:
    """Begins with its first batch. Keras takes a batch by `next` only to build the model, which needs the shapes alone."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self._real, self._is_for_build = batches, None, False
        self.is_even = batches.is_even
        self._of_replica: Any = None

    def __iter__(self) -> BatchIterator:
        return self

    @patches.guarded(LOOPS)
    def __next__(self) -> Any:
        import tensorflow as tf

        if self.batches.predictions is not None:
            return self
        if self.batches.is_read:
            return patches.theirs(next, self.real)
        if tf.inside_function():  # a program whose make_train_function makes a function of its own
            print_once(
                "the program's make_train_function runs the steps, so parts of uneven batches count the same, and logs show one part"
            )
            with tf.init_scope():
                real = self.real
            return patches.theirs(next, real)
        if self._real is None and not self._is_for_build:
            self._is_for_build = True
            self.batches.waiting -= 1
            self.batches.asked -= 1
        return self.of_replica()

    def of_replica(self) -> Any:
        """The spec of the batches of one replica, always the same object. TensorFlow makes its own again each time, which takes long."""
        if self._of_replica is None:
            self._of_replica = _of_replica(self.batches.element_spec)
        return self._of_replica

    def take(self, real: Any) -> None:
        """Take an iterator that has begun already."""
        self._real = real

    @property
    def real(self) -> Any:
        begin, self.batches.begin_epoch = self.batches.begin_epoch, None
        if begin is not None:
            patches.theirs(begin)
        if self._real is None:
            self._real = self.batches.begin()
        return self._real


def _of_replica(spec: Any) -> Any:
    """The spec of the first replica's values: a `PerReplicaSpec` (TensorFlow) has one for each replica of this worker."""
    from keras import tree

    return tree.map_structure(lambda each: (getattr(each, "_value_specs", None) or [each])[0], spec)
