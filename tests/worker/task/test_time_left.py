"""The pace of a training and the time that it still takes, with a clock of the test."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worker.task.observe import time_left
from worker.task.observe.time_left import FitProgress, Pace


def test_a_pace_is_known_after_some_windows_without_the_first() -> None:
    pace = Pace()
    assert pace.mark(0.0, 1) is None
    found = [pace.mark(20.0 + seconds, 1 + 10 * seconds) for seconds in range(1, 7)]  # the first window has the tracing: 21 s
    assert found == [None] * 4 + [pytest.approx(0.1)] * 2


def test_a_pace_is_not_told_in_the_first_seconds_and_begins_again_with_the_loop() -> None:
    pace = Pace()
    assert [pace.mark(float(second), second * 3) for second in range(6)] == [None] * 5 + [pytest.approx(1 / 3)]
    assert pace.mark(6.0, 0) is None, "another loop"
    assert pace.mark(7.0, 3) is None


def fit(epochs: int, steps: int | None, **more: Any) -> list[dict[str, Any]]:
    """What is told after each tenth step of a fit of 100 steps each; a step takes 0.1 s, and the end of an epoch 5 s."""
    progress, told = FitProgress(1, may_stop=more.pop("may_stop", False)), []
    params = {"epochs": epochs, "steps": steps}
    for epoch in range(1 + more.get("initial", 0), epochs + 1):
        told += [progress.tell(params, epoch, step, step * 0.1) for step in range(10, 101, 10)]
        progress.end_epoch(100, 10.0, 15.0)
        told.append(progress.tell(params, epoch + 1, 0, 0.0))
    return told


def test_a_fit_tells_its_fraction_at_once_and_the_time_left_once_it_is_known() -> None:
    told = fit(3, 100)
    assert (told[0]["fraction"], "left_s" in told[0]) == (0.0333, False)
    first = next(one for one in told if "left_s" in one)
    assert (first["fraction"], first["hedge"]) == (0.2, "about")
    assert first["left_s"] == pytest.approx(24.0), "240 steps; how long the end of an epoch takes is not known yet"
    assert told[10]["left_s"] == pytest.approx(20.0 + 10.0), "200 steps and the ends of two epochs"
    assert told[10]["hedge"] == ""
    assert told[-2]["left_s"] == pytest.approx(5.0), "the end of the last epoch"
    assert told[-1] == {"fit": 1, "fraction": 1.0}


def test_a_fit_that_goes_on_at_an_epoch_has_the_fraction_of_the_whole() -> None:
    assert fit(4, 100, initial=2)[0]["fraction"] == 0.525


def test_a_dataset_of_unknown_length_has_a_fraction_after_its_first_epoch() -> None:
    told = fit(2, None)
    assert told[:10] == [{}] * 10
    assert told[10]["fraction"] == 0.5


def test_early_stopping_makes_it_at_most() -> None:
    assert {one["hedge"] for one in fit(3, 100, may_stop=True) if "hedge" in one} == {"at most"}


@pytest.mark.parametrize("of", [None, "9", True, 0, -5, 3, float("nan")])
def test_a_step_of_nothing_tells_nothing(of: Any) -> None:
    assert time_left.follow(5, of) is None


def test_a_loop_that_reports_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time_left, "_pace", Pace())
    monkeypatch.setattr(time_left, "_told_at", 0.0)
    told = []
    for step in range(1, 101):
        now[0] += 0.25
        told.append(time_left.follow(step, 200))
    said = [one for one in told if one is not None]
    assert len(said) == 25, "at most one line a second"
    assert said[0] == {"fraction": 0.005}
    assert said[-1]["left_s"] == pytest.approx(200 * (1 - said[-1]["fraction"]) * 0.25, abs=0.1)
