"""Which elements of a distributed dataset each worker and replica gets: the planner of ``orch shards``. Pure.

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

Sizes are numbers of elements. Positions count the elements that a worker reads, from 0. The planner assumes that `repeat` stands between
the reading and the batching, as in `worker.files`.
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
    """A file of a dataset."""

    name: str
    size: int
    """In bytes."""
    elements: int | None = None
    """None: not counted."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How TensorFlow distributes a dataset."""

    policy: Policy = "auto"
    workers: int = 1
    replicas: int = 1
    """The replicas of each worker."""
    batch: int | None = None
    """The global batch size, of all replicas together; None: unknown."""
    drop_remainder: bool = False
    repeat: int = 1
    """How often the workers read the files; or `FOR_EVER`."""
    has_reader: bool = True
    """The dataset begins with a reader that TensorFlow can shard by file: TFRecord, lines of text, records of a fixed length."""
    one_program: bool = False
    """One program feeds all workers, as under TPUStrategy. Else each worker runs its own program, and the workers agree on the end."""

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
        """Whether each global batch is divided by its own size. Else a last, smaller batch is cut by the sizes of a whole batch."""
        return self.applied == "data" and self.all_replicas > 1

    @property
    def ends_with_the_first(self) -> bool:
        """Whether an epoch ends for all replicas when one replica has no data left. Else this replica gets batches of size 0.

        Source: `_enable_get_next_as_optional` in input_lib.py. TensorFlow does not test for data if batches have a known size,
        unless several programs must agree.
        """
        return self.one_program and self.drop_remainder


class Tally:
    """Sums over a list of files, in all and for each worker. The object does not keep the files."""

    def __init__(self, workers: int) -> None:
        self.files = self.bytes = self.elements = self.empty = 0
        self.uncounted = 0
        """Files with an unknown number of elements."""
        self.largest = self.smallest = 0
        """The most and the fewest elements of a file; bytes for a file that is not counted."""
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

    As in TensorFlow's `batch_sizes_for_worker`, the first sizes of the round are larger by one, and each worker begins at another place.
    """
    parts = sharding.all_replicas
    small, large = divmod(sharding.step_size, parts)
    begin = worker * sharding.replicas
    return [small + ((begin + place) % parts < large) for place in range(parts)]


def _cut(sharding: Sharding, worker: int, elements: int | None) -> Iterator[range]:
    """The positions in each batch that `rebatch` makes of so many elements (None: without end) in global batches."""
    if elements is not None and sharding.drop_remainder:
        elements -= elements % sharding.step_size
    start = 0
    for size in chain.from_iterable(repeat(batch_sizes(sharding, worker))):
        if size and elements is not None and start >= elements:
            return
        stop = start + size if elements is None else min(start + size, elements)
        yield range(start, stop)
        start = stop


def _slices(sharding: Sharding, worker: int, elements: int | None) -> Iterator[range]:
    """The positions in each slice that the older cut makes of each global batch, and that this worker keeps."""
    parts, size = sharding.all_replicas, sharding.step_size
    for start in count(0, size):
        stop = start + size if elements is None else min(start + size, elements)
        if stop <= start or (sharding.drop_remainder and stop - start < size):
            return
        length = -(-(stop - start) // parts)
        for place in range(worker, parts, sharding.workers):
            begin = min(start + place * length, stop)
            yield range(begin, min(begin + length, stop))


def batches(sharding: Sharding, elements: int, worker: int) -> Iterator[tuple[range, ...]]:
    """The steps of one worker: for each of its replicas a range of positions among the elements that the worker reads.

    `elements`: how many the worker reads in one pass over its files, see `read_by`. With `repeat` the positions continue after the first
    pass. In the last step the last replicas may have empty ranges. `steps` adds the empty steps after that.
    """
    total = None if sharding.repeat == FOR_EVER and elements else elements * sharding.repeat
    parts = (_slices if sharding.cuts_each_batch else _cut)(sharding, worker, total)
    while step := tuple(islice(parts, sharding.replicas)):
        yield step + (range(0),) * (sharding.replicas - len(step))


def read_by(sharding: Sharding, found: Tally, worker: int) -> int:
    """How many elements a worker reads in one pass over its files."""
    return found.by_file[worker][2] if sharding.applied == "file" else found.elements


def steps(sharding: Sharding, found: Tally) -> Iterator[tuple[tuple[range, ...], ...]]:
    """The steps of an epoch: for each worker and replica a range of positions, which is empty after the end of the worker's data."""
    nothing = (range(0),) * sharding.replicas
    of_workers = [batches(sharding, read_by(sharding, found, worker), worker) for worker in range(sharding.workers)]
    yield from zip(*of_workers, strict=False) if sharding.ends_with_the_first else zip_longest(*of_workers, fillvalue=nothing)


def whole_batch(sharding: Sharding) -> list[int]:
    """The batch sizes of all replicas in a step with enough data."""
    one = replace(sharding, drop_remainder=False, repeat=FOR_EVER)
    return [len(part) for worker in range(sharding.workers) for part in next(batches(one, sharding.step_size, worker))]


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
    """The sums of one epoch."""

    shares: tuple[Share, ...]
    steps: int
    """Those of the worker with the most steps; with the fewest, if the epoch ends with the first (`ends_with_the_first`)."""
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
    """The sums of an epoch, computed without its steps; of one pass over the files if the dataset never ends."""
    once = replace(sharding, repeat=1) if sharding.repeat == FOR_EVER else sharding
    runs = [_run(once, read_by(once, found, worker) * once.repeat, worker) for worker in range(once.workers)]
    lengths = [run.steps for run in runs]
    length = min(lengths) if once.ends_with_the_first else max(lengths)
    if once.ends_with_the_first:
        runs = [_begin(run, length, once.replicas) for run in runs]
    shares = []
    for worker, run in enumerate(runs):
        files, size = (found.by_file[worker][:2]) if once.applied == "file" else (found.files, found.bytes)
        empty = max(length * once.replicas - run.with_data, 0)
        shares.append(Share(worker, files, size, run.elements, min(run.steps, length), min(run.full, length), empty, run.partial))
    dropped = 0
    if once.drop_remainder:
        streams = [share[2] for share in found.by_file] if once.applied == "file" else [found.elements]
        dropped = sum(elements * once.repeat % once.step_size for elements in streams)
    return Epoch(tuple(shares), length, min((share.full for share in shares), default=0), dropped)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one worker does with its elements. The fields are those of `Share`, before the worker waits for the end of the others."""

    steps: int
    full: int
    partial: int
    with_data: int
    """The batches that are not empty."""
    elements: int
    sizes: list[int]
    """The batch sizes of the replicas in turn, which repeat as long as there are whole global batches."""


def _begin(run: _Run, steps: int, replicas: int) -> _Run:
    """The first steps of a worker that has whole global batches only."""
    rounds, more = divmod(steps * replicas, len(run.sizes))
    begun = run.sizes[:more]
    with_data = rounds * sum(size > 0 for size in run.sizes) + sum(size > 0 for size in begun)
    return replace(run, steps=steps, with_data=with_data, elements=rounds * sum(run.sizes) + sum(begun))


def _run(sharding: Sharding, elements: int, worker: int) -> _Run:
    """All whole global batches are alike, so the function computes only the rest after them step by step."""
    whole, rest = divmod(elements, sharding.step_size)
    rest = 0 if sharding.drop_remainder else rest
    parts_of = _slices if sharding.cuts_each_batch else _cut
    loose = replace(sharding, drop_remainder=False)
    parts = (
        [len(part) for part in _slices(loose, worker, sharding.step_size)] if sharding.cuts_each_batch else batch_sizes(sharding, worker)
    )
    tail = [len(part) for part in parts_of(loose, worker, rest)]
    replicas, per_whole = sharding.replicas, len(parts) // sharding.replicas
    full_tail = next((place for place, size in enumerate(tail) if size < parts[place]), len(tail)) // replicas
    return _Run(
        steps=whole * per_whole + -(-len(tail) // replicas),
        full=whole * per_whole + full_tail,
        partial=sum(0 < size < parts[place] for place, size in enumerate(tail)),
        with_data=whole * sum(size > 0 for size in parts) + sum(size > 0 for size in tail),
        elements=whole * sum(parts) + sum(tail),
        sizes=parts,
    )
