"""At which steps the workers of `orch scale` note their wait for peers: the same in all, however quick these are. No TensorFlow."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.protocol.task_files import SCALE
from worker.task.observe import meetings, step_times
from worker.task.observe.step_parts import EVERY_S, MARK_S, Meter


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """A function that gives the marks of a worker: whose first call of a graph is at `begun`, and each further one `took` seconds later."""

    def run(begun: float, took: float, *, of_call: int = 1, calls: int = 2000) -> list[float]:
        path = tmp_path / f"{begun}.jsonl"
        made, clock = Meter(str(path)), {"now": 100.0 + begun, "step": 0}
        monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
        monkeypatch.setattr(step_times, "newest", lambda: float(clock["step"]))
        monkeypatch.setattr(meetings, "read", lambda: [0.0, 0.0, 0.25 * clock["step"], 0.0, 0.0])
        for _ in range(calls):
            clock["now"] += took
            clock["step"] += of_call
            made.within(lambda: None, is_graph=True)
        told = [json.loads(line)[SCALE] for line in path.read_text().splitlines()]
        assert all(later[0] - row[0] <= EVERY_S + 1.1 * took for row, later in itertools.pairwise(told))
        found = {step: waited for row in told for step, waited in row[-1]}
        assert all(waited == 0.25 * step for step, waited in found.items())
        return [*found]

    return run


@pytest.mark.parametrize("took", [0.3, 0.05, 0.006, 0.0007])
def test_workers_note_the_same_steps(marks: Callable[..., list[float]], took: float) -> None:
    one, other = marks(0.0, took), marks(0.013, 1.05 * took)
    both = sorted({*one} & {*other})
    assert len(both) >= 0.4 * len(one)
    apart = max(later - step for step, later in itertools.pairwise(both[len(both) // 2 :]))
    assert apart <= max(1, 4 * MARK_S / took), "a mark at least in each eighty milliseconds"


def test_several_steps_of_one_call_are_noted_each_time(marks: Callable[..., list[float]]) -> None:
    assert len(marks(0.0, 0.05, of_call=10)) > 1900
