"""Compares the rows that several workers read with those of one process: which are read twice or never, and which line is the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from worker.values.words import count_of

from .training_steps import Difference, World, line_of, place_of, ratio_of


def of_rows(one: World, many: World, numbers: Sequence[int], workers: int) -> Iterator[Difference]:
    for number in numbers:
        mine, theirs = one.rows(number), many.rows(number)
        if mine == theirs or all(dict.fromkeys(step["rows"]) == dict.fromkeys(mine) for step in many.steps[number]):
            continue
        count, other = mine.total(), theirs.total()
        if not count or not other:  # one of the worlds calls the code of its step by itself
            continue
        parts = [sorted(step["rows"]) for step in many.steps[number]]
        if count and other == count * len(parts) and len(set(map(tuple, parts))) > 1 and not theirs - Counter(set(theirs)):
            what = f"a step has {other} rows on {workers} workers and {count} in one process: the batch grows with the number of workers"
            yield Difference("batch", number, what, _line_of_batch(one, many), "one global batch for any number of workers", other / count)
        elif count != other:
            what = f"step {number} has {count_of(other, 'row')}, and {count} in one process"
            yield Difference("rows", number, what, _line_of_batch(one, many), "", ratio_of(count, other))
        else:
            yield _other_rows(one, many, number, numbers, workers)
        return


def of_ends(one: World, many: World) -> Iterator[Difference]:
    """One of the worlds has come to the end of its program sooner."""
    counts = [len(found.steps) for found in (one, many)]
    sooner = (one, many)[counts.index(min(counts))]
    if counts[0] != counts[1] and sooner.first["ended"] != "enough steps":
        ends, goes = ("it", "one process") if sooner is many else ("one process", "it")
        what = f"the training has another number of steps: {ends} ends after {count_of(min(counts), 'step')}, and {goes} goes on"
        yield Difference("rows", min(counts) + 1, what, line_of(many.steps[1][0]))


def _other_rows(one: World, many: World, number: int, numbers: Sequence[int], workers: int) -> Difference:
    """The workers read as many rows as one process in a step, but others."""
    mine, theirs = one.rows(number), many.rows(number)
    for each in numbers:
        if each != number:
            mine, theirs = mine + one.rows(each), theirs + many.rows(each)
    never, new = (mine - theirs).total(), (theirs - mine).total()
    twice = sum(times - 1 for times in theirs.values() if times > 1) - sum(times - 1 for times in mine.values() if times > 1)
    what = f"from step {number} the rows are others than in one process"
    told = [f"{never} of {mine.total()} were not read in {count_of(len(numbers), 'step')}"] if never else []
    told += [f"{twice} were read again"] if twice > 0 else []
    alike = [place for place, (left, right) in enumerate(zip(one.leaves(number), many.leaves(number), strict=False)) if left == right]
    shards = [line for line, found in _datasets(many, "ShardDataset") if found[:1] == [workers]]
    files, line = many.first["files"], line_of(many.steps[number][0])
    made = (each for kind in ("TensorSlice", "TensorDataset", "Batch") for each, _ in _datasets(many, kind) if place_of(each))
    line = next(made, line)
    if shards and _datasets(many, "AutoShardDataset"):
        line, remedy = shards[0], "the program divides the dataset, and it is divided again: leave out shard, or set auto_shard_policy OFF"
    elif shards:
        line, remedy = shards[0], "each worker has a part of the data of its own; a shuffle with a seed before shard reads the same rows"
    elif alike and new:
        told, remedy = ["some of their tensors, such as labels, are the same"], "what makes the others draws numbers, or differs by worker"
    elif files and twice <= 0:
        line, remedy = files[0], "each worker reads files of its own; auto_shard data reads the same rows, if worker.files does not shuffle"
    elif len({tuple(sorted(step["rows"])) for step in many.steps[number]}) == 1:
        told.append("all workers read the same ones")
        remedy = "divide the data: strategy.experimental_distribute_dataset, and no auto_shard_policy OFF"
    else:
        line, own = _part_of_its_own(one, many) or (line, "")
        told += [own] if own else []
        remedy = _ORDER if twice > 0 and not own else _PART if own else f"{_PART}. Or: {_ORDER}"
    return Difference(
        "rows", number, f"{what}: {', '.join(told)}" if told else f"{what}, which reads the same ones in other steps", line, remedy
    )


_PART = "if the program gives each worker a part of the data, leave that out: the data are divided once more"
_ORDER = "the workers have the data in other orders; each needs the same seed for what draws the order"


def _part_of_its_own(one: World, many: World) -> tuple[str, str] | None:
    """The line of the program that gives a worker other data to begin with than one process, and how many."""
    sources = [dict(_datasets(found, "TensorSlice")) | dict(_datasets(found, "TensorDataset")) for found in (one, many)]
    for line, numbers in sources[1].items():
        of_one = sources[0].get(line)
        if place_of(line) and numbers and of_one and numbers != of_one:
            return line, f"a worker begins with {numbers[0]} elements, and one process with {of_one[0]}"
    return None


def _datasets(found: World, kind: str) -> list[tuple[str, list[int]]]:
    """The lines of the program that make a kind of dataset, and their numbers."""
    return [
        (line.partition(" ")[2], numbers)
        for task in found.tasks.values()
        for line, numbers in task["datasets"].items()
        if line.startswith(kind)
    ]


def _line_of_batch(one: World, many: World) -> str:
    """The line that makes batches of another size on several workers."""
    mine = {(kind, line): numbers for kind in ("Batch", "ParallelBatch", "PaddedBatch") for line, numbers in _datasets(one, kind)}
    others = [
        line
        for kind in ("Batch", "ParallelBatch", "PaddedBatch")
        for line, numbers in _datasets(many, kind)
        if mine.get((kind, line)) != numbers
    ]
    return place_of(others[0]) if others else ""
