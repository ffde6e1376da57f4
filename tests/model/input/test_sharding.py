"""The planner of ``orch shards``, alone: the guide's vectors by name, and that its sums are those of its batches.

tests/real/test_shards.py compares it with TensorFlow.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.planning.sharding import File, Sharding, batch_sizes, batches, epoch, steps
from tests.real.shard_draws import takes_file, tally

VECTORS: dict[str, tuple[Sharding, list[int], list[list[list[list[int]]]]]] = {
    # Of the guide "Distributed input", as TensorFlow 2.21 does it: steps -> workers -> replicas -> elements.
    "range(6).batch(4), 2 replicas": (Sharding(replicas=2, batch=4, has_reader=False), [6], [[[[0, 1], [2, 3]]], [[[4], [5]]]]),
    "range(4).batch(4), 5 replicas": (Sharding(replicas=5, batch=4, has_reader=False), [4], [[[[0], [1], [2], [3], []]]]),
    "range(8).batch(4), 3 replicas": (
        Sharding(replicas=3, batch=4, has_reader=False),
        [8],
        [[[[0, 1], [2, 3], []]], [[[4, 5], [6, 7], []]]],
    ),
    "range(8).batch(4), 3 replicas, OFF": (
        Sharding("off", replicas=3, batch=4, has_reader=False),
        [8],
        [[[[0, 1], [2], [3]]], [[[4, 5], [6], [7]]]],
    ),
    "range(9).batch(4), 2 replicas, as optional": (
        Sharding(replicas=2, batch=4, has_reader=False),
        [9],
        [[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]], [[[8], []]]],
    ),
    # The guide has [4] [5] and [10] [11] at the end: since TensorFlow 2.4 `rebatch` fills its batches beyond a global one.
    "FILE, two files of 6": (
        Sharding("file", workers=2, batch=4),
        [6, 6],
        [[[[0, 1]], [[6, 7]]], [[[2, 3]], [[8, 9]]], [[[4, 5]], [[10, 11]]]],
    ),
    "DATA, one file of 12": (
        Sharding("data", workers=2, batch=4),
        [12],
        [[[[0, 1]], [[2, 3]]], [[[4, 5]], [[6, 7]]], [[[8, 9]], [[10, 11]]]],
    ),
    "OFF, one file of 12": (
        Sharding("off", workers=2, batch=4),
        [12],
        [[[[place, place + 1]], [[place, place + 1]]] for place in range(0, 12, 2)],
    ),
}
"""name -> how the dataset is distributed, the elements of its files, what each replica gets."""


def files_of(counts: list[int]) -> list[File]:
    return [File(f"file-{number}", 10 * elements, elements) for number, elements in enumerate(counts)]


def seen_by(sharding: Sharding, counts: list[int], worker: int) -> list[int]:
    """The elements that a worker reads in one pass; the dataset numbers them through its files."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    own = [number for number in range(len(counts)) if takes_file(sharding, number, worker)]
    return [starts[number] + place for number in own for place in range(counts[number])]


def planned(sharding: Sharding, counts: list[int]) -> list[list[list[list[int]]]]:
    """What the planner says that each replica gets."""
    pools = [seen_by(sharding, counts, worker) for worker in range(sharding.workers)]
    found = tally(files_of(counts), sharding.workers)
    return [
        [[[pool[place] for place in part] for part in of_worker] for pool, of_worker in zip(pools, step, strict=True)]
        for step in steps(sharding, found)
    ]


@pytest.mark.parametrize(("sharding", "counts", "expected"), VECTORS.values(), ids=VECTORS)
def test_the_vectors_of_the_guide(sharding: Sharding, counts: list[int], expected: Any) -> None:
    assert planned(sharding, counts) == expected


SHARDINGS = st.builds(
    Sharding,
    policy=st.sampled_from(["auto", "file", "data", "hint", "off"]),
    workers=st.integers(1, 4),
    replicas=st.integers(1, 3),
    batch=st.integers(1, 13),
    drop_remainder=st.booleans(),
    has_reader=st.booleans(),
)


@given(SHARDINGS, st.lists(st.integers(0, 9), max_size=9))
def test_the_sums_are_those_of_the_batches(sharding: Sharding, counts: list[int]) -> None:
    """`epoch` counts whole batches at once; going through every step gives the same."""
    found = tally(files_of(counts), sharding.workers)
    summed = epoch(sharding, found)
    rows = list(steps(sharding, found))
    assert summed.steps == len(rows)
    for share in summed.shares:
        sizes = [[len(part) for part in row[share.worker]] for row in rows]
        assert share.empty == sum(size == 0 for step in sizes for size in step)
        assert share.elements == sum(map(sum, sizes))
        if sharding.applied != "data":
            own = found.elements if sharding.applied == "off" else found.by_file[share.worker][2]
            assert share.elements == own - (own % sharding.step_size if sharding.drop_remainder else 0)
    if sharding.applied == "data":
        assert sum(share.elements for share in summed.shares) + summed.dropped == found.elements


@given(SHARDINGS, st.lists(st.integers(0, 9), max_size=9))
def test_every_file_has_one_reader_or_all(sharding: Sharding, counts: list[int]) -> None:
    for number in range(len(counts)):
        readers = [worker for worker in range(sharding.workers) if takes_file(sharding, number, worker)]
        assert len(readers) == (1 if sharding.applied == "file" else sharding.workers)


def test_sizes_add_up_to_the_global_batch_in_each_step_of_all_workers() -> None:
    """What `batch_sizes_for_worker` promises: G = 7 on 2 workers of 2 replicas, its own example."""
    sharding = Sharding("file", workers=2, replicas=2, batch=7)
    assert [batch_sizes(sharding, worker) for worker in (0, 1)] == [[2, 2, 2, 1], [2, 1, 2, 2]]


def test_files_and_batches_are_not_held() -> None:
    """A list of as many files would take some 20 MB. The interpreter keeps up to 2,000 tuples for its own use."""
    sharding = Sharding("file", workers=8, replicas=8, batch=1024)
    tracemalloc.start()
    try:
        found = tally((File(f"part-{number}", 4096, 100) for number in range(50_000)), sharding.workers)
        assert epoch(sharding, found).steps == 4883
        assert sum(1 for _ in batches(sharding, 1_000_000, 0)) == 7813
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
