"""Advice about a sharded dataset: errors, wasted time or bytes, and remedies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from worker.fast_dataclass import dataclass
from worker.words import bytes_of, count_of

from ..task_names import group_tasks
from .sharding import FOR_EVER, Epoch, Sharding, Tally, epoch, read_by, whole_batch

IDLE = 0.02
"""The share of the workers' steps without data above which orch prints a warning."""
FILES_PER_WORKER = 16
"""The advised number of files for each worker: their sizes even out, and a directory of 128 files for 8 workers is still small."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice."""

    severity: Literal["error", "warning", "note"]
    """``error``: the run fails or hangs. ``warning``: the run wastes time or data, or trains on unexpected data."""
    topic: str
    """A fixed name for programs."""
    what: str
    remedy: str = ""


def advise(sharding: Sharding, found: Tally, names: Sequence[str] = ()) -> list[Advice]:
    """All advice, errors first, then warnings. `names`: of the workers."""
    order = ("error", "warning", "note")
    return sorted(_Adviser(sharding, found, names).advise(), key=lambda one: order.index(one.severity))


class _Adviser:
    def __init__(self, sharding: Sharding, found: Tally, names: Sequence[str]) -> None:
        self._sharding, self._found = sharding, found
        self._names = names or [f"worker-{worker}" for worker in range(sharding.workers)]

    def advise(self) -> Iterator[Advice]:
        yield from self._cannot_shard()
        if self._found.empty:
            some = "1 file holds" if self._found.empty == 1 else f"{self._found.empty:,} files hold"
            yield Advice("note", "empty files", f"{some} no element")
        yield from self._bytes()
        if self._found.uncounted or not self._found.elements or self._too_few_files:
            return
        summed = epoch(self._sharding, self._found)
        if self._sharding.repeat == FOR_EVER:
            yield from self._waits_for_ever(summed)
        elif self._sharding.batch is not None:
            yield from self._uneven(summed)
        if self._sharding.batch is not None:
            yield from self._batch()
            yield from self._end(summed)

    @property
    def _too_few_files(self) -> bool:
        sharding = self._sharding
        return sharding.applied == "file" and 0 < self._found.files < sharding.workers

    def _group(self, workers: Sequence[int]) -> str:
        return group_tasks(self._names[worker] for worker in workers)

    def _cannot_shard(self) -> Iterator[Advice]:
        sharding, found = self._sharding, self._found
        workers = sharding.workers
        if workers > 1 and sharding.policy == "file" and not sharding.has_reader:
            what = "TensorFlow cannot shard this by file: only TFRecords, lines of text and records of a fixed length have such a reader"
            yield Advice("error", "no reader", what, "set auto_shard: data")
        elif self._too_few_files:
            failing, idle = self._group(range(found.files)), self._group(range(found.files, workers))
            ends = "fails" if found.files == 1 else "fail"
            gets = "gets" if workers - found.files == 1 else "get"
            what = (
                f"{count_of(found.files, 'file')} for {workers} workers: {failing} {ends} with 'Could not apply FILE based sharding', "
                f"and {idle} silently {gets} only empty batches"
            )
            yield Advice("error", "few files", what, f"set auto_shard: data, or write {workers} files or more")
        if sharding.policy == "hint" and workers > 1:
            what = (
                "HINT is shown as if the script shards its list of files: dataset.shard(tf.data.experimental.SHARD_HINT, 0). "
                "Without such a line, every worker reads everything"
            )
            yield Advice("note", "hint", what)
        if not found.uncounted and not found.elements:
            yield Advice("error", "no elements", "the files hold no element", "look whether the program that wrote them has ended well")

    def _batch(self) -> Iterator[Advice]:
        sharding = self._sharding
        parts, size = sharding.all_replicas, sharding.step_size
        if not size % parts:
            return
        sizes = whole_batch(sharding)
        empty, multiple = sizes.count(0), -(-size // parts) * parts
        remedy = f"take a global batch of {multiple:,}" + (f" or {multiple - parts:,}" if multiple > parts else "")
        if empty:
            some = "1 replica gets an empty batch" if empty == 1 else f"{empty} replicas get an empty batch"
            what = f"a global batch of {size:,} for {parts} replicas: in every step {some}; the mean over an empty batch is NaN"
            yield Advice("warning", "small batch", what, remedy)
        else:
            what = f"a global batch of {size:,} cannot be shared out evenly to {parts} replicas: they get {max(sizes):,} to {min(sizes):,}"
            yield Advice("note", "odd batch", what, remedy)

    def _bytes(self) -> Iterator[Advice]:
        sharding, found = self._sharding, self._found
        workers = sharding.workers
        if workers == 1 or sharding.applied == "file" or not found.bytes:
            return
        name, all_bytes = sharding.applied.upper(), f"{bytes_of(found.bytes * workers)} instead of {bytes_of(found.bytes)}"
        if sharding.applied == "off":
            what = f"OFF: every worker reads and trains on every element, {all_bytes}; one epoch goes {workers} times over the data"
            remedy = "set auto_shard: data or file, unless each worker shuffles in its own way and you count epochs accordingly"
            yield Advice("warning", "all see all", what, remedy)
            return
        what = f"{name} reads every byte {workers} times, once on each worker: {all_bytes}"
        if not sharding.has_reader:
            what += "; TensorFlow cannot shard this by file"
            remedy = "write TFRecords, or let the script shard its list of files (worker.files, distribute_datasets_from_function)"
        elif found.files < workers:
            remedy = f"write {workers * FILES_PER_WORKER} files of even size, and set auto_shard: file"
        else:
            remedy = "set auto_shard: file"
        yield Advice("note", "reads all", what, remedy)

    def _waits_for_ever(self, summed: Epoch) -> Iterator[Advice]:
        """In a dataset without end, a worker with fewer elements only begins its next pass sooner."""
        least = min(summed.shares, key=lambda share: share.elements)
        if not least.elements:
            what = f"{self._names[least.worker]} gets no element, so its dataset ends at once, and the others wait for it for ever"
            yield Advice("error", "hangs", what, "set auto_shard: data, or write files of even size")

    def _uneven(self, summed: Epoch) -> Iterator[Advice]:
        if self._sharding.applied != "file" or summed.idle < IDLE:
            return
        least = min(summed.shares, key=lambda share: share.steps)
        most = max(summed.shares, key=lambda share: share.steps)
        what = (
            f"the files are uneven: {self._names[least.worker]} gets {least.elements:,} elements, {self._names[most.worker]} "
            f"{most.elements:,}; of {summed.steps:,} steps it has nothing to do in {summed.steps - least.steps:,}"
        )
        yield Advice("warning", "uneven", what, "set auto_shard: data, or write files of even size")

    def _end(self, summed: Epoch) -> Iterator[Advice]:
        sharding, found = self._sharding, self._found
        if sharding.repeat == FOR_EVER:
            ideal = found.elements // sharding.step_size
            what = "a dataset that is repeated for ever has no end"
            yield Advice("note", "no end", what, f"give the number of steps: one pass is about {ideal:,} steps (Keras: steps_per_epoch)")
            return
        if sharding.drop_remainder and summed.dropped:
            share = summed.dropped / (found.elements * sharding.repeat)
            left = [worker for worker in range(sharding.workers) if read_by(sharding, found, worker) * sharding.repeat < sharding.step_size]
            what = f"drop_remainder leaves out {summed.dropped:,} elements, {share:.1%}"
            if sharding.applied == "file":
                what += f": each worker batches its own files by {sharding.step_size:,} and drops its own rest"
            if left and sharding.applied == "file":
                what += f"; {self._group(left)} {'has' if len(left) == 1 else 'have'} less than one batch, and so nothing"
            remedy = "set auto_shard: data, which drops one rest" if sharding.applied == "file" and sharding.workers > 1 else ""
            yield Advice("warning" if share >= IDLE else "note", "dropped", what, remedy)
        elif (smaller := summed.steps - summed.full) and summed.idle < IDLE:
            steps = "the last step gives" if smaller == 1 else f"the last {smaller:,} steps give"
            what = f"{steps} less than the global batch of {sharding.step_size:,}: some replicas get less, or a batch of size 0"
            remedy = "divide the loss by the global batch size or by the number of elements, not by replicas"
            if sharding.applied != "file":
                remedy += ", or set drop_remainder: true"
            yield Advice("note", "small end", what, remedy)
