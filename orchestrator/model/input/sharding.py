"""What each worker and replica gets of a dataset that TensorFlow distributes: the planner behind ``orch shards``. Pure.

It follows TensorFlow 2.21, which tests/real/test_shards.py asks:

* `DistributedDataset` (tensorflow/python/distribute/input_lib.py) first cuts each batch into smaller ones for the replicas of all workers
  (`Dataset.rebatch` with the sizes of `batch_sizes_for_worker` in tensorflow/python/data/experimental/ops/distribute.py), then shards.
* FILE puts `shard(workers, index)` before the files are read (`ShardByFile` in tensorflow/core/grappler/optimizers/data/auto_shard.cc):
  each worker batches and cuts what its own files hold.
* DATA puts it at the end, after the cutting, and replaces `rebatch` by an older cut that divides each batch by itself (`ShardByData`,
  `RewriteRebatchV2ToV1`; `RebatchDatasetOp` in tensorflow/core/kernels/data/experimental/rebatch_dataset_op.cc): every worker reads all.
* OFF changes nothing: every worker reads everything, and keeps all of it.
* AUTO is FILE if the dataset begins with a reader of files that TensorFlow knows, and else DATA (`ApplyAutoShard`).
* HINT puts it where the program says `shard(SHARD_HINT, …)`; here that is taken to be the list of files.

Sizes are numbers of elements, and positions count the elements that a worker reads, from 0. `repeat` is taken to stand between the
reading and the batching, where `worker.files` has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice, repeat, zip_longest
from typing import Literal

from worker.fast_dataclass import dataclass

Policy = Literal["auto", "file", "data", "hint", "off"]
Applied = Literal["file", "data", "off"]
FOR_EVER = 0


@dataclass(frozen=True, slots=True)
class File:
    """A file of a dataset. `size` in bytes; `elements` None: nobody has counted them."""

    name: str
    size: int
    elements: int | None = None


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a dataset is distributed. `replicas`: of each worker. `batch`: the global batch, of all replicas together."""

    policy: Policy = "auto"
    workers: int = 1
    replicas: int = 1
    batch: int = 1
    drop_remainder: bool = False
    repeat: int = 1
    """How often the files are gone through; `FOR_EVER`."""
    has_reader: bool = True
    """The dataset begins with a reader of files that TensorFlow can shard by file: TFRecord, lines of text, records of a fixed length."""
    one_program: bool = False
    """One program feeds all workers, as under TPUStrategy. Else each worker runs its own, and they agree on the end."""

    @property
    def all_replicas(self) -> int:
        return self.workers * self.replicas

    @property
    def applied(self) -> Applied:
        """What the policy comes to."""
        if self.policy in ("data", "off"):
            return "data" if self.policy == "data" else "off"
        if self.policy == "auto" and not self.has_reader:
            return "data"
        return "file"

    @property
    def cuts_each_batch(self) -> bool:
        """Whether each global batch is divided by itself, and not what follows the last whole one by the same sizes as the others."""
        return self.applied == "data" and self.all_replicas > 1

    @property
    def ends_with_the_first(self) -> bool:
        """Whether an epoch ends for all as soon as one replica has nothing left. Else the others go on, and it gets batches of size 0.

        `_enable_get_next_as_optional` in input_lib.py: batches of known size are not asked whether they are there, unless several programs
        have to agree.
        """
        return self.one_program and self.drop_remainder


class Tally:
    """What has been seen of a list of files: sums for each worker, whatever the policy. Holds none of the files."""

    def __init__(self, workers: int) -> None:
        self.files = self.bytes = self.elements = self.empty = 0
        self.uncounted = 0
        """Files whose elements nobody has counted."""
        self.largest = self.smallest = 0
        """The most and the fewest elements of a file, or bytes if there are uncounted ones."""
        self.by_file = [[0, 0, 0] for _ in range(workers)]
        """Files, bytes and elements of each worker under FILE."""

    def add(self, file: File) -> None:
        share = self.by_file[self.files % len(self.by_file)]
        elements = file.elements or 0
        weight = file.size if file.elements is None else elements
        self.largest = max(self.largest, weight)
        self.smallest = weight if not self.files else min(self.smallest, weight)
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

    As `batch_sizes_for_worker` of TensorFlow: the first ones are larger by one, and each worker begins elsewhere in the round.
    """
    parts = sharding.all_replicas
    small, large = divmod(sharding.batch, parts)
    begin = worker * sharding.replicas
    return [small + ((begin + place) % parts < large) for place in range(parts)]


def _cut(sharding: Sharding, worker: int, elements: int | None) -> Iterator[range]:
    """What `rebatch` makes of so many elements (None: without end), which are first batched by the global batch: positions."""
    if elements is not None and sharding.drop_remainder:
        elements -= elements % sharding.batch
    start = 0
    for size in chain.from_iterable(repeat(batch_sizes(sharding, worker))):
        if size and elements is not None and start >= elements:
            return
        stop = start + size if elements is None else min(start + size, elements)
        yield range(start, stop)
        start = stop


def _slices(sharding: Sharding, worker: int, elements: int | None) -> Iterator[range]:
    """What the older cut makes of each global batch, and this worker keeps: every slice whose number fits."""
    parts, size = sharding.all_replicas, sharding.batch
    for start in count(0, size):
        stop = start + size if elements is None else min(start + size, elements)
        if stop <= start or (sharding.drop_remainder and stop - start < size):
            return
        length = -(-(stop - start) // parts)
        for place in range(worker, parts, sharding.workers):
            begin = min(start + place * length, stop)
            yield range(begin, min(begin + length, stop))


def batches(sharding: Sharding, elements: int, worker: int) -> Iterator[tuple[range, ...]]:
    """For each step of one worker what its replicas get: positions among the elements that it reads, a range for each replica.

    `elements`: how many the worker reads in one pass over its files, see `read_by`. With `repeat` the positions go on behind them.
    At the end the last replicas may have empty ranges; how long the worker is given empty batches after that, `steps` knows. One step is
    made at a time.
    """
    total = None if sharding.repeat == FOR_EVER and elements else elements * sharding.repeat
    parts = (_slices if sharding.cuts_each_batch else _cut)(sharding, worker, total)
    while step := tuple(islice(parts, sharding.replicas)):
        yield step + (range(0),) * (sharding.replicas - len(step))


def read_by(sharding: Sharding, found: Tally, worker: int) -> int:
    """How many elements a worker reads in one pass."""
    return found.by_file[worker][2] if sharding.applied == "file" else found.elements


def steps(sharding: Sharding, found: Tally) -> Iterator[tuple[tuple[range, ...], ...]]:
    """Each step of an epoch: for each worker, for each replica the positions it gets; empty ranges once the worker has ended."""
    nothing = (range(0),) * sharding.replicas
    of_workers = [batches(sharding, read_by(sharding, found, worker), worker) for worker in range(sharding.workers)]
    yield from zip(*of_workers, strict=False) if sharding.ends_with_the_first else zip_longest(*of_workers, fillvalue=nothing)


def whole_batch(sharding: Sharding) -> list[int]:
    """The sizes of all replicas' batches in the first step of a dataset that has enough."""
    one = replace(sharding, drop_remainder=False, repeat=FOR_EVER)
    return [len(part) for worker in range(sharding.workers) for part in next(batches(one, sharding.batch, worker))]


# --- the sums ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker has in an epoch.

    `elements`: what its replicas get. `steps`: those before its data has ended; `full`: those in which every replica has its whole batch.
    `empty`, `partial`: batches of its replicas that are of size 0, or smaller than that replica's others.
    """

    worker: int
    files: int
    bytes: int
    elements: int
    steps: int
    full: int
    empty: int
    partial: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over all files, summed up. `steps`: the longest worker's, or the shortest's where the epoch ends with the first."""

    shares: tuple[Share, ...]
    steps: int
    full: int
    """Steps in which every replica of every worker has its whole batch."""
    dropped: int
    """Elements that `drop_remainder` leaves out."""

    @property
    def read(self) -> int:
        """Bytes that all workers read, together."""
        return sum(share.bytes for share in self.shares)

    @property
    def idle(self) -> float:
        """The share of all workers' steps in which they have nothing to do."""
        return 1 - sum(share.steps for share in self.shares) / (self.steps * len(self.shares)) if self.steps else 0.0


def epoch(sharding: Sharding, found: Tally) -> Epoch:
    """The sums of an epoch, without going through its steps. One that never ends is summed up for one pass."""
    once = replace(sharding, repeat=1) if sharding.repeat == FOR_EVER else sharding
    runs = [_run(once, read_by(once, found, worker) * once.repeat, worker) for worker in range(once.workers)]
    lengths = [run[0] for run in runs]
    length = min(lengths) if once.ends_with_the_first else max(lengths)
    shares = []
    for worker, (own, full, partial, with_data, elements) in enumerate(runs):
        files, size = (found.by_file[worker][:2]) if once.applied == "file" else (found.files, found.bytes)
        empty = length * once.replicas - with_data
        shares.append(Share(worker, files, size, elements, min(own, length), min(full, length), max(empty, 0), partial))
    dropped = 0
    if once.drop_remainder:
        streams = [share[2] for share in found.by_file] if once.applied == "file" else [found.elements]
        dropped = sum(elements * once.repeat % once.batch for elements in streams)
    return Epoch(tuple(shares), length, min((share.full for share in shares), default=0), dropped)


def _run(sharding: Sharding, elements: int, worker: int) -> tuple[int, int, int, int, int]:
    """Of one worker: steps, steps with whole batches, batches that are partial, batches with data, elements of its replicas.

    All whole global batches are alike, so only what follows the last of them is gone through.
    """
    whole, rest = divmod(elements, sharding.batch)
    rest = 0 if sharding.drop_remainder else rest
    parts_of = _slices if sharding.cuts_each_batch else _cut
    loose = replace(sharding, drop_remainder=False)
    parts = [len(part) for part in _slices(loose, worker, sharding.batch)] if sharding.cuts_each_batch else batch_sizes(sharding, worker)
    tail = [len(part) for part in parts_of(loose, worker, rest)]
    replicas, per_whole = sharding.replicas, len(parts) // sharding.replicas
    full_tail = next((place for place, size in enumerate(tail) if size < parts[place]), len(tail)) // replicas
    partial = sum(0 < size < parts[place] for place, size in enumerate(tail))
    with_data = whole * sum(size > 0 for size in parts) + sum(size > 0 for size in tail)
    given = whole * sum(parts) + sum(tail)
    return whole * per_whole + -(-len(tail) // replicas), whole * per_whole + full_tail, partial, with_data, given
