"""A planned input, and advice about it: errors, wasted time or bytes, and remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..task_names import group_tasks
from .sharding import Epoch, Sharding, Tally, epoch, whole_batch

IDLE = 0.02
"""The share of the workers' steps without data above which orch prints a warning."""
FILES_PER_WORKER = 16
"""The advised number of files for each worker: their sizes even out, and a directory of 128 files for 8 workers is still small."""
SMALL = 100_000_000
"""The bytes that each worker reads in a second or two: it is no use to divide less."""
_ORDER = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Sharded:
    sharding: Sharding
    found: Tally
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    ignored: str = ""
    """Why the strategy shards nothing; empty if it does."""

    @property
    def has_too_few_files(self) -> bool:
        return self.sharding.applied == "file" and self.found.files < self.sharding.workers

    @property
    def has_steps(self) -> bool:
        """True if the steps of an epoch are known: elements and batch are known, and TensorFlow accepts the input."""
        return self.sharding.batch is not None and not self.found.uncounted and not self.has_too_few_files and self.found.elements > 0

    def group(self, workers: Iterable[int]) -> str:
        """The names of these workers as one word."""
        return group_tasks(self.names[worker] for worker in workers)


@dataclass(frozen=True, slots=True)
class Advice:
    severity: Literal["error", "warning", "note"]
    """``error``: the run fails or hangs. ``warning``: the run wastes time or data, or trains on unexpected data."""
    topic: str
    what: str
    remedy: str = ""


def advise(planned: Sharded) -> list[Advice]:
    """All advice, errors first, then warnings."""
    if planned.ignored:
        return [Advice("note", "not sharded", planned.ignored)]
    return sorted(_advise(planned), key=lambda one: _ORDER.index(one.severity))


def _advise(planned: Sharded) -> Iterator[Advice]:
    sharding, found = planned.sharding, planned.found
    yield from _cannot_shard(planned)
    if found.empty:
        yield Advice("note", "empty files", f"{count_of(found.empty, 'file')} without an element")
    yield from _bytes(sharding, found)
    if planned.has_steps:
        summed = epoch(sharding, found)
        yield from _uneven(planned, summed)
        yield from _batch(sharding)
        yield from _end(planned, summed)
    if "csv" in planned.kinds and sharding.policy == "auto" and sharding.workers > 1:
        what = "TensorFlow cannot shard CsvDataset by file. Each line is counted as an element, also the header's"
        yield Advice("note", "csv", what, "say --format text, if the script reads lines with TextLineDataset")
    if planned.found.uncounted:
        what = "it is not known how many elements these files hold"
        yield Advice("note", "not counted", what, "say how many each has with --elements-per-file, or what they are with --format")


def _cannot_shard(planned: Sharded) -> Iterator[Advice]:
    sharding, found = planned.sharding, planned.found
    workers = sharding.workers
    if workers > 1 and sharding.policy == "file" and not sharding.has_reader:
        what = "TensorFlow cannot shard this by file: only TFRecords, lines of text and records of a fixed length have such a reader"
        yield Advice("error", "no reader", what, "set auto_shard: data")
    elif planned.has_too_few_files:
        failing, idle = planned.group(range(found.files)), planned.group(range(found.files, workers))
        what = (
            f"{count_of(found.files, 'file')} for {workers} workers: TensorFlow fails in {failing} "
            f"('Could not apply FILE based sharding'), and gives {idle} only empty batches"
        )
        yield Advice("error", "few files", what, f"set auto_shard: data, or write {workers} files or more")
    if sharding.policy == "hint" and workers > 1:
        what = "HINT is for a script with dataset.shard(tf.data.experimental.SHARD_HINT, 0); else every worker reads everything"
        yield Advice("note", "hint", what)
    if not planned.found.uncounted and not found.elements:
        yield Advice("error", "no elements", "the files hold no element", "look whether the program that wrote them has ended well")


def _bytes(sharding: Sharding, found: Tally) -> Iterator[Advice]:
    workers = sharding.workers
    if workers == 1 or sharding.applied == "file" or not found.bytes:
        return
    all_bytes = f"{bytes_of(found.bytes * workers)} instead of {bytes_of(found.bytes)}"
    if sharding.applied == "off":
        what = f"OFF: every worker reads and trains on every element, {all_bytes}; one epoch goes {workers} times over the data"
        remedy = "set auto_shard: data or file, unless each worker shuffles in its own way and you count epochs accordingly"
        yield Advice("warning", "all see all", what, remedy)
        return
    what = f"DATA reads every byte {workers} times, once on each worker: {all_bytes}"
    if found.bytes < SMALL:
        yield Advice("note", "reads all", f"{what}, which costs little at this size")
        return
    remedy = "set auto_shard: file"
    if not sharding.has_reader:
        remedy = "TensorFlow cannot shard this by file: write TFRecords, or let the script shard its list of files (worker.files)"
    elif found.files < workers:
        remedy = f"write {workers * FILES_PER_WORKER} files of even size, and set auto_shard: file"
    yield Advice("note", "reads all", what, remedy)


def _uneven(planned: Sharded, summed: Epoch) -> Iterator[Advice]:
    if planned.sharding.applied != "file" or summed.idle < IDLE:
        return
    least = min(summed.shares, key=lambda share: share.steps)
    most = max(summed.shares, key=lambda share: share.steps)
    what = (
        f"the files are uneven: {planned.names[least.worker]} gets {least.elements:,} elements, {planned.names[most.worker]} "
        f"{most.elements:,}; of {summed.steps:,} steps it has nothing to do in {summed.steps - least.steps:,}"
    )
    yield Advice("warning", "uneven", what, "set auto_shard: data, or write files of even size")


def _batch(sharding: Sharding) -> Iterator[Advice]:
    parts, size = sharding.all_replicas, sharding.step_size
    if not size % parts:
        return
    sizes, multiple = whole_batch(sharding), -(-size // parts) * parts
    remedy = f"take a global batch of {multiple:,}" + (f" or {multiple - parts:,}" if multiple > parts else "")
    if empty := sizes.count(0):
        what = f"a global batch of {size:,} leaves {empty} of {parts} replicas empty in every step; the mean over an empty batch is NaN"
        yield Advice("warning", "small batch", what, remedy)
    else:
        what = f"a global batch of {size:,} cannot be shared out evenly to {parts} replicas: they get {max(sizes):,} to {min(sizes):,}"
        yield Advice("note", "odd batch", what, remedy)


def _end(planned: Sharded, summed: Epoch) -> Iterator[Advice]:
    sharding, smaller = planned.sharding, summed.steps - summed.full
    if summed.dropped:
        share = summed.dropped / planned.found.elements
        what, remedy = f"drop_remainder leaves out {summed.dropped:,} elements, {share:.1%}", ""
        if sharding.applied == "file" and sharding.workers > 1:
            what += f": each worker batches its own files by {sharding.step_size:,} and drops its own rest"
            if left := [share.worker for share in summed.shares if not share.elements]:
                what += f"; {planned.group(left)} {'has' if len(left) == 1 else 'have'} less than one batch, and so nothing"
            remedy = "set auto_shard: data, which drops one rest"
        yield Advice("warning" if share >= IDLE else "note", "dropped", what, remedy)
    elif smaller and summed.idle < IDLE:
        what = f"{count_of(smaller, 'step')} at the end with less than the global batch of {sharding.step_size:,}: some replicas get less"
        remedy = "divide the loss by the global batch size or by the number of elements, not by replicas"
        if sharding.applied != "file":
            remedy += ", or set drop_remainder: true"
        yield Advice("note", "small end", what, remedy)
