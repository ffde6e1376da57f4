"""What is odd about what the tasks of a cluster have read."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestrator.model.planning.input_counts import InputCounts, describe, judge, read
from tests import golden
from worker.values.codec import from_json


def counts(*batches: int, steps: int = 412, seconds: float = 0.0, waiting_s: float = 0.0) -> InputCounts:
    elements = tuple(32 * number for number in batches)
    return InputCounts(steps, batches, elements, elements, seconds, waiting_s)


def cluster(*tasks: InputCounts) -> dict[str, InputCounts]:
    return {f"worker-{index}": task for index, task in enumerate(tasks)}


@golden.cases("remarks.txt")
def test_what_is_odd_is_said_in_a_line_each(case: golden.Case) -> None:
    """What each task has read."""
    case.check("\n".join(judge(cluster(*(from_json(InputCounts, task) for task in yaml.safe_load(case.given))), final=True)))


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
