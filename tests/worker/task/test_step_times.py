"""How marks become windows of steps, and what the agent reads of them."""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path

import pytest

from worker.host import pace_file
from worker.protocol import task_files
from worker.task.input import input_counter
from worker.task.observe import meetings, reports, step_times
from worker.task.observe.step_times import Pace


class Counts:
    """The time, and what TensorFlow would have counted until then."""

    def __init__(self) -> None:
        self.now, self.input, self.batches = 100.0, 0.0, 0.0
        self.meetings = [0.0, 0.0, 0.0, 0.0, 0.0]
        self.fetches_since = 0.0

    def step(self, work: float, peers: float, read: float, within: float = 0.0) -> None:
        """`within`: the part of `peers` that is spent while the next batch is awaited."""
        self.now += work + peers + read
        self.input += read + within
        self.meetings = [each + more for each, more in zip(self.meetings, (3, 3, peers, within, peers), strict=True)]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found = Counts()
    monkeypatch.setattr(meetings, "read", lambda: found.meetings)
    monkeypatch.setattr(step_times, "APART_S", 0.05)
    monkeypatch.setattr(step_times, "_state", step_times._State())
    step_times.take_input(lambda number: (found.input, found.batches)[number], lambda: found.fetches_since)
    return found


@pytest.fixture
def pace(counts: Counts, tmp_path: Path) -> Pace:
    return Pace(str(tmp_path / task_files.PACE), lambda: counts.now)


def read(directory: Path) -> dict[str, float]:
    return pace_file.read(str(directory))


def test_a_window_has_the_medians_of_its_steps(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    pace.mark(0)
    for number in range(1, 21):
        counts.step(3.0 if number == 7 else 0.06, 0.02, 0.01, within=0.015)
        pace.mark(number)
    pace.poll()
    found = read(tmp_path)
    assert [found[name] for name in ("step", "window", "came", "met", "waits")] == [20, 1, 60, 60, 0]
    assert [found[name] for name in ("work", "peers", "input")] == pytest.approx([0.06, 0.02, 0.01])
    assert found["rate"] == pytest.approx(20 / (20 * 0.09 + 2.94))


def test_steps_within_a_moment_count_together(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    pace.mark(0)
    for number in range(1, 1001):
        counts.step(0.001, 0.001, 0.0)
        pace.mark(number)
    pace.poll()
    found = read(tmp_path)
    assert found["window"] == 1
    assert [found[name] for name in ("work", "peers", "rate")] == pytest.approx([0.001, 0.001, 500])


def test_a_window_of_long_steps_ends_after_ten_seconds(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    pace.mark(0)
    for number in range(1, 4):
        counts.step(4.0, 0.0, 0.0)
        pace.mark(number)
    pace.poll()
    assert read(tmp_path)["work"] == pytest.approx(4.0)


def test_numbers_that_begin_anew_are_no_step(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    """As when a training loop is run a second time."""
    for number in (50, 51, *range(21)):
        counts.step(0.1, 0.0, 0.0)
        pace.mark(number)
    pace.poll()
    assert read(tmp_path)["rate"] == pytest.approx(10, rel=0.5)


def test_a_wait_that_goes_on_grows(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    counts.meetings = [7, 6, 0, 0, -95]
    pace.poll()
    counts.now += 5
    pace.poll()
    assert read(tmp_path) == {"step": 0, "window": 0, "came": 7, "met": 6, "waits": 5, "reads": 0}
    counts.meetings = [7, 6, 5, 0, -99]  # another meeting
    pace.poll()
    assert read(tmp_path)["waits"] == 0
    counts.now += 5
    counts.meetings = [7, 7, 5, 0, 5]
    pace.poll()
    assert read(tmp_path)["waits"] == 0


def test_a_fetch_that_goes_on_is_a_wait_for_input_unless_the_task_waits_for_its_peers_in_it(
    pace: Pace, counts: Counts, tmp_path: Path
) -> None:
    counts.fetches_since = time.time() - 7
    pace.poll()
    assert 7 <= read(tmp_path)["reads"] < 60
    counts.meetings = [7, 6, 0, 0, -95]
    pace.poll()
    assert read(tmp_path)["reads"] == 0
    counts.meetings, counts.fetches_since = [7, 7, 0, 0, -95], 0.0
    pace.poll()
    assert read(tmp_path)["reads"] == 0


def test_a_new_variable_is_a_meeting_and_no_step(pace: Pace, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variables, then a third that waits: the waits are not added up, and `has_trained` stays false."""
    for waiting, made in ((1, 1), (1, 2), (1, 3)):
        monkeypatch.setattr(meetings, "new_variables", [waiting, made])
        pace.poll()
        counts.now += 4
    pace.poll()
    assert [read(tmp_path)[name] for name in ("came", "met", "waits", "window")] == [1, 0, 4, 0]
    assert not pace_file.has_trained(str(tmp_path))


def test_without_marks_the_batches_count(pace: Pace, counts: Counts, tmp_path: Path) -> None:
    for _ in range(4):
        counts.batches += 10
        pace.poll()
        counts.step(1.0, 0.0, 0.0)
    assert (read(tmp_path)["window"], read(tmp_path)["step"]) == (1, 40)
    assert read(tmp_path)["work"] == pytest.approx(0.1)


def test_the_wait_for_input_never_shrinks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While the next batch is fetched, the wait for the slowest worker in it is known before the time of the whole fetch is."""
    monkeypatch.setattr("threading.Thread.start", lambda thread: None)
    monkeypatch.setattr("atexit.register", lambda function: None)
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    counter = input_counter.Counter(str(tmp_path / "reports"))
    told = []
    for fetched, within, steps in ((1.0, 0.5, 10), (1.0, 0.9, 11), (2.0, 1.4, 12), (2.5, 1.9, 13)):
        monkeypatch.setattr(counter, "read", lambda number=None, sums=(fetched, steps, steps, 8, 8): dict(enumerate(sums)))
        monkeypatch.setattr(meetings, "read", lambda within=within: [1, 1, within, within, 0])
        counter._poll()
        told.append(json.loads((tmp_path / "reports").read_text().splitlines()[-1])["orch_input"]["waiting_s"])
        time.sleep(0.2)
    assert told == pytest.approx([0.0, 0.0, 0.1, 0.1])


@pytest.fixture
def _begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCH_LOG_DIR", str(tmp_path))
    monkeypatch.setattr(step_times, "_state", step_times._State())
    monkeypatch.setattr(step_times.threading.Thread, "start", lambda thread: None)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_begun")
def test_the_steps_of_a_report_count_and_not_those_of_fit(tmp_path: Path) -> None:
    reports.report({"step": 5, "loss": 1.0})
    reports.report({"loss": 1.0})
    reports.report({"step": "six"})
    reports.report({"step": True})
    pace = step_times.begin()
    assert pace is not None
    assert pace.step == 5
    step_times.begin_fit()
    reports.report({"step": 1})
    step_times.advance(3)
    assert pace.step == 8
    step_times.end_fit()
    reports.report({"step": 9})
    assert pace.step == 9


def test_outside_orch_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_LOG_DIR", raising=False)
    monkeypatch.setattr(step_times, "_state", step_times._State())
    step_times.mark(1)
    assert step_times.begin() is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"step": -1}', '{"step": "1"}', '{"came": NaN}', '{"step": 1e99}', '{"window": true}', '{"met": 4294967296}'],
)
def test_anything_else_in_the_file_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / task_files.PACE).write_text(text)
    assert read(tmp_path) == {}


def test_a_file_has_what_a_sample_takes(tmp_path: Path) -> None:
    (tmp_path / task_files.PACE).write_text(json.dumps({"step": 3, "came": 2.0, "other": "x"}))
    assert read(tmp_path) == {"step": 3.0, "came": 2}
    assert read(tmp_path / "nowhere") == {}
    assert pace_file.read("") == {}
