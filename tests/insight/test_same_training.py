"""What is a difference between two trainings, and which cause is told: by made-up records of both."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.checks.same_training import compare, sentences
from orchestrator.checks.training_steps import relation, world

GRADIENT = [1.0, -2.0, 3.0]
START = [0.5, 0.25, 0.125]


def step(replica: int, rows: list[int], gradient: list[float], *terms: tuple[str, float], **event: Any) -> dict[str, Any]:
    listed = [{"line": line, "value": value} for line, value in terms]
    loss = {"kind": "loss", "line": "train.py:9", "variables": [0], "grads": [gradient], "terms": listed}
    apply = {
        "kind": "apply",
        "optimizer": 0,
        "line": "train.py:10",
        "is_added": True,
        "variables": [0],
        "grads": [gradient],
        "rate": 0.1,
        **event,
    }
    empty: dict[str, Any] = {"random": {}, "adds": [], "trace": []}
    return {
        "number": 1,
        "replica": replica,
        "line": "train.py:8",
        "rows": rows,
        "leaves": [rows],
        "events": [loss, apply],
        "after": {"0": START},
        **empty,
    }


def task(*steps: dict[str, Any], start: list[float] = START, **more: Any) -> dict[str, Any]:
    variables = [{"name": "kernel", "size": 3, "dtype": "float32"}]
    found = {
        "steps": list(steps),
        "variables": variables,
        "started": {"0": start},
        "shown": [],
        "datasets": {},
        "wrote": {},
        "layers": [],
        "files": [],
        "ended": "enough steps",
        "is_small": False,
    }
    return {**found, **more}


def times(factor: float) -> list[float]:
    return [factor * number for number in GRADIENT]


ONE = {"worker-0": task(step(0, [1, 2, 3, 4], GRADIENT, ("train.py:5", 4.0), ("train.py:6", 2.0)))}


def found(*steps: dict[str, Any], one: dict[str, Any] = ONE, **more: Any) -> list[str]:
    """What is said of two workers with these steps."""
    many = {f"worker-{number}": task(each, **more) for number, each in enumerate(steps)}
    return sentences(compare(world(one), world(many), 2))


def test_shares_that_add_up_are_the_same_training() -> None:
    terms = (("train.py:5", 2.0), ("train.py:6", 1.0))
    assert found(step(0, [2, 1], times(0.25), *terms), step(1, [3, 4], times(0.75), *terms)) == [
        "the same training as in one process: 1 step, 4 rows, 1 variable, largest difference 0e+00"
    ]


def test_the_term_that_counts_twice_is_told_alone() -> None:
    terms = (("train.py:5", 2.0), ("train.py:6", 2.0))
    (line,) = found(step(0, [1, 2], times(0.7), *terms), step(1, [3, 4], times(0.7), *terms))
    assert line.startswith("not the same training as in one process: a term of the loss counts 2 times")
    assert line.endswith("(train.py:6)")


def test_gradients_that_the_program_adds_up_are_added_twice() -> None:
    terms = (("train.py:5", 2.0), ("train.py:6", 1.0))
    steps = [step(place, rows, GRADIENT, *terms) for place, rows in enumerate(([1, 2], [3, 4]))]
    for each in steps:
        each["adds"] = ["train.py:11"]
    (line,) = found(*steps)
    assert "the gradient of `kernel` is 2.00 times that of one process: the program adds up the gradients" in line
    assert line.endswith("(train.py:11)")


def test_rows_that_are_read_twice_and_never() -> None:
    (line,) = found(
        step(0, [1, 2], times(0.5)),
        step(1, [1, 2], times(0.5)),
        datasets={"ShardDataset train.py:3": [2, 0], "AutoShardDataset train.py:8": [2, 0]},
    )
    assert "2 of 4 were not read in 1 step, 2 were read again; the program divides the dataset, and it is divided again" in line
    assert line.endswith("(train.py:3)")


def test_a_part_that_the_program_takes_by_itself_is_named_with_the_line_that_takes_it() -> None:
    one = {"worker-0": {**ONE["worker-0"], "datasets": {"TensorSliceDataset train.py:3": [48], "TensorSliceDataset train.py:2": [9]}}}
    parts = {"TensorSliceDataset train.py:3": [24], "TensorSliceDataset train.py:2": [9]}
    (line,) = found(step(0, [1, 2], times(0.5)), step(1, [5, 6], times(0.5)), one=one, datasets=parts)
    assert "a worker begins with 24 elements, and one process with 48; if the program gives each worker a part" in line
    assert line.endswith("(train.py:3)")


def test_a_row_that_is_another_is_not_said_to_be_read_again() -> None:
    (line,) = found(step(0, [1, 2], times(0.5)), step(1, [3, 5], times(0.5)))
    assert "1 of 4 were not read in 1 step; " in line
    assert "read again" not in line


def test_a_batch_that_grows_with_the_workers_is_a_verdict_of_its_own() -> None:
    datasets = {"BatchDatasetV2 train.py:4": [8]}
    (line,) = found(step(0, [1, 2, 3, 4], times(1)), step(1, [5, 6, 7, 8], times(1)), datasets=datasets)
    assert line.startswith("not the same training as in one process: a step has 8 rows on 2 workers and 4 in one process")
    assert line.endswith("(train.py:4)")


def test_another_start_hides_what_follows_from_it() -> None:
    (line,) = found(step(0, [1, 2], times(3)), step(1, [3, 4], times(3)), start=[0.6, 0.25, 0.125])
    assert "the training begins with other values of `kernel`" in line


@pytest.mark.parametrize(("factor", "told"), [(1 + 1e-4, False), (1 + 1e-2, True)])
def test_rounding_is_no_difference(factor: float, told: bool) -> None:
    lines = found(step(0, [1, 2], times(0.5 * factor)), step(1, [3, 4], times(0.5 * factor)))
    assert lines[0].startswith("not the same") is told


def test_numbers_that_fit_shows_half_as_large() -> None:
    shown = [{"kind": "batch", "line": "", "step": 0, "values": {"loss": 1.0}}]
    one = {"worker-0": {**ONE["worker-0"], "shown": shown}}
    half = [{**shown[0], "values": {"loss": 0.5}}]
    lines = found(step(0, [1, 2], times(0.5)), step(1, [3, 4], times(0.5)), one=one, shown=half)
    shows = "what fit shows as 'loss' is 0.50 times that of one process; return means over the rows, no sums"
    assert lines == [f"not the same training as in one process: {shows}"]


def test_a_relation_has_a_ratio_only_where_all_numbers_have_it() -> None:
    assert relation(GRADIENT, times(2)).is_ratio(2)
    assert not relation(GRADIENT, [2.0, -4.0, 7.0]).is_ratio(2)
    assert relation(GRADIENT, [float("nan"), 1.0, 2.0]).difference == float("inf")


def test_the_first_operation_that_is_neither_parts_nor_sums_is_named() -> None:
    one = step(0, [1, 2, 3, 4], GRADIENT)
    one["trace"] = [("MatMul", "train.py:4", 4, 8.0, 8.0), ("Mean", "train.py:5", 1, 2.0, 2.0), ("AddV2", "train.py:6", 4, 8.0, 8.0)]
    parts = [step(place, rows, times(0.8)) for place, rows in enumerate(([1, 2], [3, 4]))]
    for place, each in enumerate(parts):
        each["trace"] = [
            ("MatMul", "train.py:4", 2, 4.0, 4.0),
            ("Mean", "train.py:5", 1, 1.5 + place, 1.5 + place),
            ("AddV2", "train.py:6", 2, 4.0 + place, 4.0 + place),
        ]
    (line,) = found(*parts, one={"worker-0": task(one)})
    assert "differs by 60%: the first operation whose numbers are others is AddV2" in line
    assert line.endswith("(train.py:6)")


def test_a_difference_below_a_hundredth_has_a_decimal() -> None:
    parts = [step(place, rows, times(0.5015)) for place, rows in enumerate(([1, 2], [3, 4]))]
    assert "differs by 0.3%" in found(*parts, one={"worker-0": task(step(0, [1, 2, 3, 4], GRADIENT))})[0]


def test_the_numbers_of_the_first_step_tell_the_operation_also_where_the_gradients_differ_later() -> None:
    one = step(0, [1, 2, 3, 4], GRADIENT)
    one["trace"] = [("Sub", "train.py:5", 4, 0.0, 8.0)]
    parts = [step(place, rows, times(0.5)) for place, rows in enumerate(([1, 2], [3, 4]))]
    for each in parts:
        each["trace"] = [("Sub", "train.py:5", 2, 0.0, 3.0)]
    later = [[{**each, "number": number, "trace": []} for number in (2, 3)] for each in (step(0, [5, 6, 7, 8], GRADIENT), *parts)]
    for place, steps in enumerate(later[1:]):
        for changed in steps:
            changed |= {"rows": [5 + 2 * place, 6 + 2 * place], "events": step(0, [], times(0.8))["events"]}
    many = {f"worker-{place}": task(each, *more) for place, (each, more) in enumerate(zip(parts, later[1:], strict=True))}
    (line,) = sentences(compare(world({"worker-0": task(one, *later[0])}), world(many), 2))
    assert "from step 2 the gradient of `kernel` differs by 60%: the first operation whose numbers are others is Sub" in line


@pytest.mark.parametrize(("later", "told"), [((0.5, 0.7, 0.5), False), ((0.5, 0.7, 0.7), True), ((0.5, 0.7), False), ((0.7, 0.5), True)])
def test_a_difference_of_one_later_step_alone_is_rounding(later: tuple[float, ...], told: bool) -> None:
    """An error is there from the first step on, or stays."""

    def steps(replica: int, shares: tuple[float, ...]) -> list[dict[str, Any]]:
        own = [[1, 2, 3, 4], [1, 2], [3, 4]][replica]
        shifted = [[share * each + (share - 0.5) * index for index, each in enumerate(GRADIENT)] for share in shares]
        made = [step(max(0, replica - 1), own, gradient) for gradient in (shifted if replica else [GRADIENT] * len(shares))]
        return [{**each, "number": number} for number, each in enumerate(made, 1)]

    one, many = world({"worker-0": task(*steps(0, later))}), world({f"worker-{place}": task(*steps(place + 1, later)) for place in (0, 1)})
    found = compare(one, many, 2)
    assert found.is_same is not told
    assert any("rounding chose another" in note for note in found.notes) is not told


def test_one_cause_that_is_met_twice_is_told_once() -> None:
    terms = (("train.py:5", 4.0), ("train.py:5", 4.0))
    lines = found(
        *(step(place, rows, GRADIENT, *terms) for place, rows in enumerate(([1, 2], [3, 4]))),
        one={"worker-0": task(step(0, [1, 2, 3, 4], GRADIENT, *terms))},
    )
    assert len(lines) == 1


def test_labels_that_are_alike_by_chance_do_not_hide_another_part_of_the_data() -> None:
    """As many rows of each class, in another order."""
    one = step(0, [1, 2, 3, 4], GRADIENT)
    parts = [step(place, rows, times(0.5)) for place, rows in enumerate(([5, 6], [7, 8]))]
    for each, classes in zip((one, *parts), ([0, 1, 0, 1], [0, 0], [1, 1]), strict=True):
        each["leaves"] = [each["rows"], classes]
    (line,) = found(*parts, one={"worker-0": task(one)})
    assert "4 of 4 were not read" in line
    assert "labels" not in line


@pytest.mark.parametrize(("is_small", "told"), [(True, False), (False, True)])
def test_float16_rounds_more(is_small: bool, told: bool) -> None:
    lines = found(step(0, [1, 2], times(0.505)), step(1, [3, 4], times(0.505)), is_small=is_small)
    assert lines[0].startswith("not the same") is told


def test_a_world_that_ends_sooner_has_another_number_of_steps() -> None:
    one = {"worker-0": task(step(0, [1, 2, 3, 4], GRADIENT), {**step(0, [5, 6, 7, 8], GRADIENT), "number": 2})}
    lines = found(step(0, [1, 2], times(0.5)), step(1, [3, 4], times(0.5)), one=one, ended="the end of the program")
    assert "the training has another number of steps: it ends after 1 step, and one process goes on" in lines[0]
