"""The input that tasks have read, as the tasks count it (worker/task/input/input_counter.py), and remarks about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from worker.values.codec import ContractError, Seconds, Size, from_json
from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of

from ..task_names import group_tasks

WATCHED_S = 5.0
"""The time that a task waits for input means something only after this many seconds: the first steps wait for buffers to fill."""
BOUND, LOST_S = 0.3, 30.0
"""A task that waits for input for this share of its time, and for this many seconds, gets a remark: in a short run little is lost."""
UNEVEN = 0.05
"""Tasks end unevenly if their numbers of batches differ by more than this share of the largest number, and by more than one batch."""


@dataclass(frozen=True, slots=True)
class InputCounts:
    """Holds what one task has read from its distributed datasets in its attempt. Each tuple has one number per replica of the task."""

    steps: Size
    """How often the task got a batch for each replica, with empty batches."""
    batches: tuple[Size, ...]
    """The batches that were not empty."""
    elements: tuple[Size, ...]
    bytes: tuple[Size, ...]
    """The size of the tensors in memory, without tensors of strings."""
    seconds: Seconds = 0.0
    """The time in which the task made steps and orch measured."""
    waiting_s: Seconds = 0.0
    """The part of `seconds` in which the task waited for input."""

    @property
    def waiting(self) -> float:
        """The share of the time that the task waited for input; 0 if orch has measured for less than `WATCHED_S`."""
        return min(1.0, self.waiting_s / self.seconds) if self.seconds >= WATCHED_S else 0.0


def read(data: object) -> InputCounts | None:
    """The counts in a task's report; None if the data are damaged: the program can write into this file too."""
    try:
        return from_json(InputCounts, data)
    except ContractError:
        return None


def describe(counts: InputCounts) -> str:
    """The counts of a task as one cell of a table."""
    waiting = f", waited for input {counts.waiting:.0%} of the time" if counts.waiting else ""
    return f"input: {max(counts.batches, default=0):,} batches, {sum(counts.elements):,} elements{waiting}"


def judge(tasks: Mapping[str, InputCounts], *, final: bool) -> tuple[str, ...]:
    """The remarks about the input of the training tasks, one line each. `tasks`: the counts by name of task.

    `final`: all tasks have succeeded. Before that, and after a failure, the counts of two tasks come from different moments, so that a
    difference means nothing.
    """
    given = {name: counts for name, counts in tasks.items() if counts.steps and counts.batches}
    judges = (_idle, _idle_replicas, *([_uneven] if final else []), _waiting)
    return tuple(f"input: {remark}" for judge in judges for remark in judge(given))


def _idle(given: Mapping[str, InputCounts]) -> Iterator[str]:
    idle = [name for name, counts in given.items() if not any(counts.batches)]
    busy = len(given) - len(idle)
    if idle and busy:
        steps = max(given[name].steps for name in idle)
        why = f"as with {count_of(busy, 'file')} for {len(given)} workers. fix: --auto-shard data, or write {len(given)} files or more"
        if all(_is_of_single_elements(given[name]) for name in given if name not in idle):
            why = f"as with a global batch of {count_of(busy, 'element')}, or {why}"
        yield f"{group_tasks(idle)} got 0 of {steps:,} batches: only {busy} of {len(given)} tasks had anything to read, {why}"


def _idle_replicas(given: Mapping[str, InputCounts]) -> Iterator[str]:
    idle = [name for name, counts in given.items() if any(counts.batches) and not all(counts.batches)]
    if idle:
        empty = given[idle[0]].batches.count(0)
        yield (
            f"{empty} of {len(given[idle[0]].batches)} replicas of {group_tasks(idle)} got no batch: "
            "the global batch has fewer elements than there are replicas. fix: make it larger"
        )


def _uneven(given: Mapping[str, InputCounts]) -> Iterator[str]:
    """Tasks whose input ended before that of the others. Small batches, such as the last of an epoch, cost nothing: a step without
    them would lose rows."""
    batches = {name: max(counts.batches) for name, counts in given.items() if any(counts.batches)}
    most = max(batches.values(), default=0)
    short = [name for name, number in batches.items() if most - number > max(1, UNEVEN * most)]
    if short:
        least = min(short, key=batches.__getitem__)
        rest = f" (and {len(short) - 1} more)" if len(short) > 1 else ""
        fullest = max(batches, key=batches.__getitem__)
        if not _differ_by_small_batches(given[least], given[fullest]):  # a small last batch costs no element
            why = "its share ended sooner, and the rest of its steps were empty. fix: --auto-shard data, or write files of even size"
            yield f"{least}{rest} had {batches[least]:,} batches, others {most:,}: {why}"


def _differ_by_small_batches(fewer: InputCounts, more: InputCounts) -> bool:
    """True if the batches that only one of two tasks got are small ones: they have less than half as many elements as its other batches."""
    if _is_of_single_elements(more):  # there is nothing smaller
        return True
    extra = sum(more.batches) - sum(fewer.batches)
    elements = sum(more.elements) - sum(fewer.elements)
    return elements / extra < sum(fewer.elements) / sum(fewer.batches) / 2 if extra > 0 else False


def _is_of_single_elements(counts: InputCounts) -> bool:
    return sum(counts.elements) == sum(counts.batches)


def _waiting(given: Mapping[str, InputCounts]) -> Iterator[str]:
    slow = [name for name, counts in given.items() if counts.waiting >= BOUND and counts.waiting_s >= LOST_S]
    if slow:
        worst = max(slow, key=lambda name: given[name].waiting)
        counts = given[worst]
        yield (
            f"{counts.waiting:.0%} of the step is waiting for input ({worst}: {counts.waiting_s:.0f} of {counts.seconds:.0f} s). "
            "fix: prefetch, cache or map(…, num_parallel_calls=tf.data.AUTOTUNE) in the dataset, or data workers. more: orch help input"
        )
