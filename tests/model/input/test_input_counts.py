"""What is odd about what the tasks of a cluster have read."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.model.planning.input_counts import InputCounts, describe, judge, read


def counts(*batches: int, steps: int = 412, seconds: float = 0.0, waiting_s: float = 0.0) -> InputCounts:
    elements = tuple(32 * number for number in batches)
    return InputCounts(steps, batches, elements, elements, seconds, waiting_s)


def cluster(*tasks: InputCounts) -> dict[str, InputCounts]:
    return {f"worker-{index}": task for index, task in enumerate(tasks)}


@pytest.mark.parametrize(
    ("tasks", "lines"),
    [
        ((), []),
        ((counts(412), counts(412)), []),
        ((counts(412), counts(411)), []),
        ((counts(412), counts(400)), []),
        ((counts(412, seconds=60, waiting_s=17.9),), []),
        ((counts(412, seconds=4.9, waiting_s=4.9),), []),
        ((counts(412, seconds=31, waiting_s=29.9),), []),
        ((counts(0), counts(0)), []),
        ((counts(2, steps=2), counts(1, steps=2)), []),
        (
            (counts(412), counts(412), counts(412), counts(0)),
            [
                "worker-3 got 0 of 412 batches: only 3 of 4 tasks had anything to read, as with 3 files for 4 workers; "
                "auto_shard: data, or 4 files or more"
            ],
        ),
        (
            (counts(412), counts(0)),
            [
                "worker-1 got 0 of 412 batches: only 1 of 2 tasks had anything to read, as with 1 file for 2 workers; "
                "auto_shard: data, or 2 files or more"
            ],
        ),
        (
            (counts(412), counts(300), counts(350)),
            [
                "worker-1 (and 1 more) had 300 batches, others 412: its share ended sooner, and the rest of its steps were empty; "
                "auto_shard: data, or files of even size"
            ],
        ),
        (  # DATA: the last global batch of each epoch has one element, for worker-0
            (InputCounts(16, (16,), (14 * 8 + 2,), (1,)), InputCounts(16, (14,), (14 * 8,), (1,)), InputCounts(16, (14,), (14 * 8,), (1,))),
            [],
        ),
        (  # global batches of two elements, and of one at the end of each epoch
            (InputCounts(30, (30,), (30,), (1,)), InputCounts(30, (24,), (24,), (1,)), InputCounts(30, (0,), (0,), (0,))),
            [
                "worker-2 got 0 of 30 batches: only 2 of 3 tasks had anything to read, as with a global batch of 2 elements, or as with "
                "2 files for 3 workers; auto_shard: data, or 3 files or more"
            ],
        ),
        (
            (counts(412, 412, 0),),
            ["1 of 3 replicas of worker-0 got no batch: the global batch has fewer elements than there are replicas; make it larger"],
        ),
        (
            (counts(412, seconds=51, waiting_s=32.1), counts(412, seconds=51, waiting_s=20)),
            [
                "63% of the step is waiting for input (worker-0: 32 of 51 s). fix: prefetch, cache or "
                "map(…, num_parallel_calls=tf.data.AUTOTUNE) in the dataset, or data workers. more: orch help input"
            ],
        ),
    ],
)
def test_what_is_odd_is_said_in_a_line_each(tasks: tuple[InputCounts, ...], lines: list[str]) -> None:
    assert list(judge(cluster(*tasks), final=True)) == [f"input: {line}" for line in lines]


def test_counts_of_different_moments_are_not_compared() -> None:
    assert judge(cluster(counts(12), counts(10)), final=False) == ()
    assert len(judge(cluster(counts(12), counts(0)), final=False)) == 1


def test_a_task_says_what_it_has_read() -> None:
    assert (
        describe(counts(1200, 1199, seconds=10, waiting_s=2.5)) == "input: 1,200 batches, 76,768 elements, waited for input 25% of the time"
    )
    assert describe(counts(3, seconds=1, waiting_s=1)) == "input: 3 batches, 96 elements"


@pytest.mark.parametrize("data", [None, 7, {}, {"steps": 1}, {"steps": -1, "batches": [], "elements": [], "bytes": []}])
def test_what_is_no_count_is_not_read(data: Any) -> None:
    assert read(data) is None
    assert read({"steps": 1, "batches": [1], "elements": [2], "bytes": [16]}) == InputCounts(1, (1,), (2,), (16,))
