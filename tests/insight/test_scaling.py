"""What `orch scale` says of programs whose steps are made up: the bound, the batch, the other sizes, and what the workers share."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.checks.scaling import (
    ALL,
    EACH,
    OTHER,
    UNKNOWN,
    Size,
    answer,
    bound_of,
    error_of,
    forecast,
    measured_s,
    size_of,
    way_of,
)
from worker.protocol.step_sums import StepSums

MB = 1e6


def rows(workers: int, *, batch: float = 32, count: int = 40, **parts: Any) -> dict[str, list[StepSums]]:
    """The rows of workers whose steps all take `compute + input + python` seconds; the last worker `slow` longer, or `slow_input`.

    `turns`: as `slow`, of another worker in each step.
    """
    compute, fetch, python = (parts.get(name, 0.0) for name in ("compute", "input", "python"))
    slow, slow_input, turns, size = (parts.get(name, 0.0) for name in ("slow", "slow_input", "turns", "bytes"))
    size = size or 4 * MB
    exchange = (workers - 1) / workers * 2 * size / parts.get("rate", 1e9) + parts.get("hop", 0.0) * 2 * (workers - 1)
    wait = (slow + slow_input) * (workers > 1)
    step = compute + fetch + python + exchange + wait + turns * (workers > 1)
    found = dict[str, list[StepSums]]()
    for worker in range(workers):
        is_slow = worker == workers - 1 and workers > 1
        peers = exchange + (0.0 if is_slow else wait)
        own = (step, 1.0, step - python, peers, fetch + slow_input * is_slow, batch, 1.0 * (workers > 1), size * (workers > 1), 0.0)
        per_row = max(1, math.ceil(1 / step))  # a row a second
        made, waited = list[StepSums](), 0.0
        for at in range(1, count + 1):
            marks = []
            for number in range(per_row * (at - 1), per_row * at):
                waited += peers + turns * (number % workers != worker)
                marks.append((number + 1, waited))
            row = [value * per_row * at for value in own]
            made.append(StepSums(*row, waits=marks)._replace(peers=waited))
        found[f"worker-{worker}"] = made
    return found


def size(workers: int, **given: Any) -> Size:
    batch = given.pop("batch", 32)
    return size_of(rows(workers, batch=batch, **given))


PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "exchange": ({"compute": 0.05, "bytes": 94 * MB, "rate": 1e9}, "exchange"),
    "messages": ({"compute": 0.05, "bytes": 4000, "hop": 0.01}, "exchange"),
    "a step of few bytes": ({"compute": 0.003, "bytes": 4000, "hop": 0.008}, "small"),
    "input": ({"compute": 0.05, "input": 0.04}, "input"),
    "input of one": ({"compute": 0.05, "slow_input": 0.04}, "input"),
    "one slow worker": ({"compute": 0.05, "slow": 0.03}, "waiting"),
    "each slow in turn": ({"compute": 0.05, "turns": 0.05}, "waiting"),
    "Python": ({"compute": 0.05, "python": 0.03}, "Python"),
    "a small step": ({"compute": 0.001, "python": 0.001, "bytes": 4000, "hop": 0.0003}, "small"),
    "computing": ({"compute": 0.1, "python": 0.002, "input": 0.001}, "computing"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_bound_is_named(name: str, workers: int) -> None:
    parts, bound = PROGRAMS[name]
    found = size(workers, **parts)
    assert bound_of(found) == bound
    assert sum(found.parts.values()) == pytest.approx(found.step)
    assert found.slowest == f"worker-{workers - 1}" or "slow" not in "".join(parts)
    assert not found.slowest or "turns" not in parts


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("a ")])
@pytest.mark.parametrize(("sizes", "other"), [((1, 2), 4), ((1, 2, 4), 8), ((2, 4), 8), ((1, 2, 3), 4)])
def test_the_next_size_is_forecast(name: str, sizes: tuple[int, ...], other: int) -> None:
    parts, _ = PROGRAMS[name]
    found = [size(workers, **parts) for workers in sizes]
    wanted = size(other, **parts)
    assert forecast(found, other).step == pytest.approx(wanted.step, rel=0.15)
    assert forecast(found, other).speed == pytest.approx(wanted.speed, rel=0.15)


def test_a_batch_that_all_workers_share_makes_computing_shorter_and_the_rest_not() -> None:
    found = [size(n, batch=96 / n, compute=0.02 + 0.24 / n, bytes=4 * MB, rate=1e8) for n in (1, 2, 4)]
    assert way_of(found) == ALL
    wanted = size(8, batch=12, compute=0.05, bytes=4 * MB, rate=1e8)
    assert forecast(found, 8).step == pytest.approx(wanted.step, rel=0.02)
    assert forecast(found, 8).examples == 96
    text = answer(found)["text"]
    assert "batch: 96 for all workers together, the same in all sizes (96, 48, 24 for each)" in text
    assert text[-1].startswith("try: batch 24 -> 48 for each worker (half the exchanges for each example: about 1.3 x the speed)")
    assert "; from " in next(line for line in text if line.startswith("4 workers are ")) or bound_of(found[-1]) == "exchange"


@pytest.mark.parametrize(("batches", "way"), [((32, 32, 32), EACH), ((32, 16, 8), ALL), ((32, 24, 8), OTHER), ((0, 0, 0), UNKNOWN)])
def test_what_the_batch_does_is_named(batches: tuple[float, ...], way: str) -> None:
    found = [size(n, batch=batch, compute=0.05) for n, batch in zip((1, 2, 4), batches, strict=True)]
    made = answer(found)
    assert made["batch_is_for"] == way
    assert bool(made["forecasts"]) == (way != OTHER)
    assert ("steps/s" if way == UNKNOWN else "examples/s") in made["text"][0]


def test_the_error_of_a_forecast_is_that_of_the_largest_size_from_the_others() -> None:
    parts, _ = PROGRAMS["exchange"]
    one, two, four = (size(n, **parts) for n in (1, 2, 4))
    assert error_of([one, two, four], 8) == pytest.approx(0.1)
    slower = size(4, **{**parts, "rate": 5e8})
    off = forecast([one, two], 4).step / slower.step - 1
    assert off < -0.2
    assert error_of([one, two, slower], 8) == pytest.approx(abs(off))
    assert error_of([one, two, slower], 16) == pytest.approx(2 * abs(off))
    assert error_of([one, two], 4) > 0.15, "messages or bytes: one exchange does not tell"


def test_the_warm_up_and_too_few_steps_are_left_out() -> None:
    found = rows(1, compute=0.05)["worker-0"]
    assert measured_s(found[:4]) == 0.0
    assert measured_s(found) == pytest.approx(36.0)
    slow = rows(1, compute=1.0)["worker-0"]
    assert measured_s(slow[:15]) == 0.0, "five steps of warm-up, and fewer than ten after"
    assert measured_s(slow[:16]) == pytest.approx(10.0)
    cold = [row._replace(time=100 + row.time, steps=0.0) for row in found[:9]] + [row._replace(time=110 + row.time) for row in found]
    assert measured_s(cold) == pytest.approx(36.0), "until the first step all is compiled"
    assert measured_s([]) == 0.0


def test_what_shares_cores_has_no_speed_up() -> None:
    parts, _ = PROGRAMS["computing"]
    shares = "2 workers share the 2 cores of this machine: more workers cannot be faster there"
    found = [size(1, **parts), size_of(rows(2, **parts), shares=shares)]
    made = answer(found)
    assert " x" not in "\n".join(made["text"])
    assert f"{shares}. On hosts of their own: -H HOST,HOST" in made["text"]
    assert made["forecasts"] == []
    assert [each["speed_up"] for each in made["sizes"]] == [1.0, None]
    assert not any(line.startswith("try: ") for line in made["text"])


def test_the_answer_fits_eighty_columns_but_for_its_sentences() -> None:
    parts, _ = PROGRAMS["exchange"]
    found = [size(n, **parts) for n in (1, 2, 4)]
    text = answer(found, [size_of(rows(4, batch=64, **{**parts, "compute": 0.1}), batch=64)], ["a note"])["text"]
    table = text[: text.index("")]
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in table] == ["workers", "1", "2", "4"]
    assert "4 workers are 1.0 x as fast as 1: 74 % of a step is the exchange of 94.0 MB in 1 message, at 1.0 GB a second" in text
    exchange = "59 % of a step is the exchange of 94.0 MB in 1 message, at 1.0 GB a second"
    assert f"with a batch of 64, 4 workers: 1,062 examples a second, 1.7 x; {exchange}" in text
    assert "8 workers: about 1.9 x, within 10 %" in text
    assert text[-1] == "a note"


def test_the_batch_to_try_is_twice_the_one_that_the_script_has() -> None:
    """Also where a size was measured over more of the last batches of epochs, which are smaller."""
    found = [size(n, batch=batch, **PROGRAMS["exchange"][0]) for n, batch in ((1, 32), (2, 31))]
    text = "\n".join(answer(found)["text"])
    assert "batch: 32 for each worker" in text
    assert "try: batch 32 -> 64 for each worker" in text


def test_a_bound_that_comes_with_more_workers_is_named() -> None:
    parts = {"compute": 0.1, "bytes": 4 * MB, "rate": 1e9}
    found = [size(n, **parts, hop=0.0012) for n in (1, 2, 4)]
    assert bound_of(found[-1]) == "computing"
    line = next(line for line in answer(found)["text"] if line.startswith("4 workers are "))
    assert line.endswith("; from 9 workers on the bound is the exchange")


def test_time_between_epochs_is_told_where_it_is_long() -> None:
    found = rows(1, compute=0.05)
    found["worker-0"] = [row._replace(between=0.02 * row.steps) for row in found["worker-0"]]
    assert "left out: the time between epochs, with the validation: 20 ms for each step" in answer([size_of(found)])["text"]
