"""Compares what several workers are given: each keeps a share of its own data, which must be the same in all workers, in one order.

A dataset is compared once, when `fit`, `evaluate` or `predict` of Keras 3 takes it, or when a program begins to iterate over it.
"""

from __future__ import annotations

import functools
import os
import weakref
import zlib
from typing import Any

from ...values.words import few
from .. import patches
from ..patches.features import GIVEN
from ..patches.import_hooks import print_once
from . import shuffle_order

SAMPLED = 64
"""About how many rows of an array make its fingerprint."""
_ITERATE = "tensorflow.python.distribute.input_lib"
MOST = 1 << 26
"""The most bytes of one message."""
_exchanges: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""The functions of each strategy by which its workers tell one another numbers and bytes: `_sum` and `_gather` as TensorFlow's."""
_COMPARED = "_orch_compared"
"""An attribute of a distributed dataset that has been compared."""


def compare_soon() -> None:
    """Compare the datasets of loops, as soon as the script has imported TensorFlow."""
    patches.after(GIVEN, _ITERATE, lambda module: patches.replace(GIVEN, "DistributedDataset.__iter__", _begin))


def _begin(real: Any, self: Any) -> Any:
    import tensorflow as tf

    dataset, strategy = getattr(self, "_original_dataset", None), getattr(self, "_strategy", None)
    is_new = dataset is not None and not hasattr(self, _COMPARED)
    # The workers tell each other whether they have data, but of data without an end: there a worker may be alone with its loop.
    if is_new and tf.executing_eagerly() and shuffle_order.has_several_workers(strategy) and not _is_endless(dataset):
        tell(of_all(strategy, *facts(self, strategy)))
    return real(self)


def _is_endless(dataset: Any) -> bool:
    import tensorflow as tf

    return bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)


def of_all(strategy: Any, *values: int) -> list[list[int]]:
    """The numbers of all workers, in their order. All workers must call this."""
    if not shuffle_order.has_several_workers(strategy):
        return [list(values)]
    import numpy as np

    rows: Any = np.zeros((int(strategy.extended._num_workers), len(values)), np.int64)
    rows[int(strategy.extended._id_in_cluster)] = values
    found: list[list[int]] = _exchanged(strategy, _sum, rows).tolist()
    return found


def gather_bytes(strategy: Any, own: bytes) -> list[bytes]:
    """The bytes of all workers, in their order, by messages of no more than `MOST` bytes. All workers must call this."""
    import numpy as np

    sizes = [size for (size,) in of_all(strategy, len(own))]
    replicas = int(strategy.num_replicas_in_sync) // int(strategy.extended._num_workers)
    found = [bytearray() for _ in sizes]
    for begin in range(0, max(sizes), MOST):
        length = min(MOST, max(sizes) - begin)
        words = -(-length // (4 * replicas))  # each replica sends its share, which is as long in all workers
        mine = own[begin : begin + length].ljust(4 * replicas * words, b"\0")
        for place, sent in enumerate(_gathered(strategy, np.frombuffer(mine, np.int32).reshape(replicas, words))):
            found[place] += sent.tobytes()[:length]
    return [bytes(each[:size]) for each, size in zip(found, sizes, strict=True)]


def _gathered(strategy: Any, own: Any) -> Any:
    """An array with a row for each replica of a worker: those of all workers."""
    return _exchanged(strategy, _gather, own).reshape(-1, *own.shape)


def _exchanged(strategy: Any, exchange: Any, own: Any) -> Any:
    import tensorflow as tf

    functions = _exchanges.setdefault(strategy, {})
    # A function of its own: outside of one, TensorFlow makes a function for each call, which takes some 50 ms.
    if exchange not in functions:
        functions[exchange] = tf.function(functools.partial(exchange, strategy), autograph=False, reduce_retracing=True)
    return functions[exchange](tf.constant(own)).numpy()


def _gather(strategy: Any, rows: Any) -> Any:
    import tensorflow as tf

    def of_replica() -> Any:
        place = tf.distribute.get_replica_context().replica_id_in_sync_group % rows.shape[0]
        return rows[place : place + 1]

    return strategy.gather(strategy.run(of_replica), axis=0)


def _sum(strategy: Any, rows: Any) -> Any:
    """The sum over the workers, by one message between them: a gather is two."""
    import tensorflow as tf

    def of_replica() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_first = number % (strategy.num_replicas_in_sync // strategy.extended._num_workers) == 0
        return tf.where(is_first, rows, tf.zeros_like(rows))

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)


def facts(distributed: Any, strategy: Any) -> tuple[int, int]:
    """Return what a worker tells the others of its data: the fingerprint, and which share the program has taken itself, from 1 on; 0: none.

    A fingerprint of -1: not known. A worker that fails here tells the others all the same, which would wait for it.
    """
    try:
        return _facts(distributed, strategy)
    except Exception as error:
        print_once(f"input: the data of this worker are not compared with those of the others: {type(error).__name__}: {error}")
        return -1, 0


def _facts(distributed: Any, strategy: Any) -> tuple[int, int]:
    setattr(distributed, _COMPARED, True)
    dataset: Any = getattr(distributed, "_original_dataset", None)
    if dataset is None or dataset.options().experimental_distribute.auto_shard_policy.name == "OFF":
        return 0, 0
    workers = int(strategy.extended._num_workers)
    return fingerprint(dataset), next((1 + index for number, index in _shards(dataset) if number == workers), 0)


def fingerprint(dataset: Any) -> int:
    """A number that is the same in all workers whose arrays, texts and lists of files are the same; 0: there are none.

    Some rows of each array count, so that large arrays cost no more than small ones.
    """
    import tensorflow as tf

    told = 0
    for part in _all_parts(dataset):
        for tensor in getattr(part, "_tensors", ()):
            rows = int(tensor.shape[0] or 0) if tf.is_tensor(tensor) and tensor.shape.rank else 0
            if not rows or tensor.dtype in (tf.variant, tf.resource):
                continue
            some = tf.gather(tensor, range(0, rows, max(1, rows // SAMPLED))).numpy()
            text = _without_directory(some.ravel().tolist()) if tensor.dtype == tf.string else some.tobytes()
            told = zlib.crc32(text, zlib.crc32(str(tensor.shape).encode(), told))
    return zlib.crc32(str(shards).encode(), told) if (shards := _shards(dataset)) else told


def _without_directory(texts: list[bytes]) -> bytes:
    """Texts without the directory that all of them have: each worker may have a copy of the files at a place of its own."""
    shared: Any = os.path.commonprefix(texts)  # noqa: RUF071 - they may be no paths
    return b"\n".join(text[shared.rfind(b"/") + 1 :] for text in texts)


def _shards(dataset: Any) -> list[tuple[int, int]]:
    """The shares that the program itself takes of its data: of how many, and which."""
    found = [part for part in _all_parts(dataset) if hasattr(part, "_num_shards") and hasattr(part, "_index")]
    return [(int(part._num_shards), int(part._index)) for part in found]


def _all_parts(dataset: Any) -> list[Any]:
    """The dataset and all datasets before it, with those of the names that a reader of files has."""
    dataset = getattr(dataset, shuffle_order.COPIED, dataset)
    found = list(shuffle_order.parts(dataset))
    names = [part._filenames for part in found if hasattr(getattr(part, "_filenames", None), "_inputs")]
    every = [*found, *(part for each in names for part in shuffle_order.parts(each))]
    return list({id(part): part for part in every}.values())


@patches.guarded(GIVEN)
def tell(told: list[list[int]]) -> None:
    """Say that the workers do not have the same data. `told`: the facts of all workers."""
    fingerprints, shares = zip(*told, strict=True)
    if sorted(shares) == list(range(1, len(shares) + 1)):
        print_once(
            f"input: the program takes one of {len(shares)} shares in each worker, by shard(…), and the workers divide each share once "
            "more: the other elements are never read. Leave out shard(…), or give the dataset the policy OFF"
        )
        return
    other = [
        f"worker {index}" for index, found in enumerate(fingerprints) if -1 not in (found, fingerprints[0]) and found != fingerprints[0]
    ]
    if other:
        print_once(
            f"input: the data given in {few(other)} are not those in worker 0, so some examples come twice in an epoch, others never. "
            "fix: sort lists of files and seed each shuffle (random_state=0); for data that is divided already: --auto-shard off. "
            "more: orch help input"
        )
