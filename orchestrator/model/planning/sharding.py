"""Finds which elements of a distributed dataset each worker and replica gets: the planner of ``orch shards``. Pure.

The rules are those of TensorFlow 2.21; tests/real/test_shards.py compares the planner with TensorFlow:

* `DistributedDataset` (tensorflow/python/distribute/input_lib.py) first cuts each batch into smaller ones for the replicas of all workers
  (`Dataset.rebatch` with the sizes of `batch_sizes_for_worker` in tensorflow/python/data/experimental/ops/distribute.py), then shards.
* FILE puts `shard(workers, index)` before the files are read (`ShardByFile` in tensorflow/core/grappler/optimizers/data/auto_shard.cc):
  each worker batches and cuts what its own files hold.
* DATA puts it at the end, after the cutting, and replaces `rebatch` by an older cut that divides each batch by itself (`ShardByData`,
  `RewriteRebatchV2ToV1`; `RebatchDatasetOp` in tensorflow/core/kernels/data/experimental/rebatch_dataset_op.cc): every worker reads all.
* OFF changes nothing: every worker reads and keeps everything.
* AUTO is FILE if the dataset begins with a reader of files that TensorFlow knows, and else DATA (`ApplyAutoShard`).
* HINT puts it where the program has `shard(SHARD_HINT, …)`. The planner assumes the list of files.

Sizes are numbers of elements. Positions count the elements that a worker reads, from 0. An epoch is one pass over the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice, zip_longest
from typing import Literal

from worker.values.fast_dataclass import dataclass

ShardPolicy = Literal["auto", "file", "data", "hint", "off"]
Applied = Literal["file", "data", "off"]


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int
    """In bytes."""
    elements: int | None = None
    """None: not counted."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Tells how TensorFlow distributes a dataset."""

    policy: ShardPolicy = "auto"
    workers: int = 1
    replicas: int = 1
    """The replicas of each worker."""
    batch: int | None = None
    """The global batch size, of all replicas together; None: unknown."""
    drop_remainder: bool = False
    has_reader: bool = True
    """The dataset begins with a reader that TensorFlow can shard by file: TFRecord, lines of text, records of a fixed length."""

    @property
    def all_replicas(self) -> int:
        return self.workers * self.replicas

    @property
    def step_size(self) -> int:
        """The elements of one step. Without a batch size one for each replica, which shows how the elements are divided."""
        return self.batch or self.all_replicas

    @property
    def applied(self) -> Applied:
        """The policy that has effect: AUTO becomes FILE or DATA."""
        if self.policy == "data" or (self.policy == "auto" and not self.has_reader):
            return "data"
        return "off" if self.policy == "off" else "file"

    @property
    def cuts_each_batch(self) -> bool:
        """True if each global batch is divided by its own size. Else a last, smaller batch is cut by the sizes of a whole batch."""
        return self.applied == "data" and self.all_replicas > 1


class Tally:
    """Sums over a list of files, in all and for each worker. The object does not keep the files."""

    def __init__(self, workers: int) -> None:
        self.files = self.bytes = self.elements = self.empty = 0
        self.uncounted = 0
        """Files with an unknown number of elements."""
        self.largest = self.smallest = 0
        """The most and the fewest elements of a file."""
        self.by_file = [[0, 0, 0] for _ in range(workers)]
        """Files, bytes and elements of each worker under FILE."""

    def add(self, file: File) -> None:
        share = self.by_file[self.files % len(self.by_file)]
        elements = file.elements or 0
        self.largest = max(self.largest, elements)
        self.smallest = min(self.smallest, elements) if self.files else elements
        self.files += 1
        self.bytes += file.size
        self.elements += elements
        self.uncounted += file.elements is None
        self.empty += file.elements == 0
        share[0] += 1
        share[1] += file.size
        share[2] += elements


# --- the batches -------------------------------------------------------------------------------


def batch_sizes(sharding: Sharding, worker: int) -> list[int]:
    """The sizes that `rebatch` cuts on one worker, in turn; together one global batch.

    As in TensorFlow's `batch_sizes_for_worker`, the first sizes of the round are larger by one, and each worker begins at another place.
    """
    parts = sharding.all_replicas
    small, large = divmod(sharding.step_size, parts)
    begin = worker * sharding.replicas
    return [small + ((begin + place) % parts < large) for place in range(parts)]


def _cut(sharding: Sharding, worker: int, elements: int) -> Iterator[range]:
    """The positions in each batch that `rebatch` makes of so many elements in global batches."""
    start = 0
    for size in cycle(batch_sizes(sharding, worker)):
        if size and start >= elements:
            return
        stop = min(start + size, elements)
        yield range(start, stop)
        start = stop


def _slices(sharding: Sharding, worker: int, elements: int) -> Iterator[range]:
    """The positions in each slice that the older cut makes of each global batch, and that this worker keeps."""
    parts, size = sharding.all_replicas, sharding.step_size
    for start in range(0, elements, size):
        stop = min(start + size, elements)
        length = -(-(stop - start) // parts)
        for place in range(worker, parts, sharding.workers):
            begin = min(start + place * length, stop)
            yield range(begin, min(begin + length, stop))


def _parts(sharding: Sharding, worker: int, elements: int) -> Iterator[range]:
    return (_slices if sharding.cuts_each_batch else _cut)(sharding, worker, elements)


def batches(sharding: Sharding, elements: int, worker: int) -> Iterator[tuple[range, ...]]:
    """The steps of one worker: for each of its replicas a range of positions among the elements that the worker reads.

    `elements`: how many the worker reads, see `read_by`. In the last step the last replicas may have empty ranges. `steps` adds the empty
    steps after that.
    """
    if sharding.drop_remainder:
        elements -= elements % sharding.step_size
    parts = _parts(sharding, worker, elements)
    while step := tuple(islice(parts, sharding.replicas)):
        yield step + (range(0),) * (sharding.replicas - len(step))


def read_by(sharding: Sharding, found: Tally, worker: int) -> int:
    """Return how many elements a worker reads."""
    return found.by_file[worker][2] if sharding.applied == "file" else found.elements


def steps(sharding: Sharding, found: Tally) -> Iterator[tuple[tuple[range, ...], ...]]:
    """The steps of an epoch: for each worker and replica a range of positions, which is empty after the end of the worker's data."""
    of_workers = [batches(sharding, read_by(sharding, found, worker), worker) for worker in range(sharding.workers)]
    yield from zip_longest(*of_workers, fillvalue=(range(0),) * sharding.replicas)


def _whole_sizes(sharding: Sharding, worker: int) -> list[int]:
    """The sizes of one worker's batches, which come again in turn as long as there are whole global batches."""
    return [len(part) for part in islice(_parts(sharding, worker, sharding.step_size), sharding.all_replicas)]


def whole_batch(sharding: Sharding) -> list[int]:
    """The batch sizes of all replicas in a step with enough data."""
    return [size for worker in range(sharding.workers) for size in _whole_sizes(sharding, worker)[: sharding.replicas]]


# --- the sums ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """One worker in an epoch."""

    worker: int
    files: int
    bytes: int
    elements: int
    """The elements that its replicas get."""
    steps: int
    """The steps before the end of its data."""
    full: int
    """The steps in which every replica has a whole batch."""
    empty: int
    """Batches of size 0, of all its replicas."""
    partial: int
    """Batches that are smaller than the other batches of the same replica."""


@dataclass(frozen=True, slots=True)
class Epoch:
    shares: tuple[Share, ...]
    steps: int
    """Those of the worker with the most steps."""
    full: int
    """The steps in which every replica of every worker has a whole batch."""
    dropped: int
    """The elements that `drop_remainder` leaves out."""

    @property
    def read(self) -> int:
        """The bytes that all workers read together."""
        return sum(share.bytes for share in self.shares)

    @property
    def idle(self) -> float:
        """The share of all workers' steps without data."""
        return 1 - sum(share.steps for share in self.shares) / (self.steps * len(self.shares)) if self.steps else 0.0


def epoch(sharding: Sharding, found: Tally) -> Epoch:
    """The sums of an epoch, computed without its steps."""
    shares = [_share(sharding, found, worker) for worker in range(sharding.workers)]
    length = max(share.steps for share in shares)
    shares = [replace(share, empty=share.empty + (length - share.steps) * sharding.replicas) for share in shares]
    streams = [elements for _, _, elements in found.by_file] if sharding.applied == "file" else [found.elements]
    dropped = sum(elements % sharding.step_size for elements in streams) if sharding.drop_remainder else 0
    return Epoch(tuple(shares), length, min(share.full for share in shares), dropped)


def _share(sharding: Sharding, found: Tally, worker: int) -> Share:
    """One worker until the end of its data. All whole global batches are alike; only the rest after them is computed step by step."""
    files, size = found.by_file[worker][:2] if sharding.applied == "file" else (found.files, found.bytes)
    whole, rest = divmod(read_by(sharding, found, worker), sharding.step_size)
    sizes, replicas = _whole_sizes(sharding, worker), sharding.replicas
    tail = [len(part) for part in _parts(sharding, worker, 0 if sharding.drop_remainder else rest)]
    smaller = [place for place, part in enumerate(tail) if part < sizes[place]]
    whole_steps = whole * len(sizes) // replicas
    number = whole_steps + -(-len(tail) // replicas)
    with_data = whole * sum(part > 0 for part in sizes) + sum(part > 0 for part in tail)
    return Share(
        worker,
        files,
        size,
        elements=whole * sum(sizes) + sum(tail),
        steps=number,
        full=whole_steps + (smaller[0] if smaller else len(tail)) // replicas,
        empty=number * replicas - with_data,
        partial=sum(tail[place] > 0 for place in smaller),
    )
