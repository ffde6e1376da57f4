"""From which line on a stream is shown that is asked for since a time."""

from __future__ import annotations

import math
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.record.log_index import EVERY_S, MOST_A_SECOND, KeptMarks, Marks
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run

TASK = ("worker-0", 1, "stdout")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def written(home: Path, growths: list[tuple[float, int]]) -> tuple[RunDir, list[tuple[float, int]]]:
    """A run whose only stream was written in lines: seconds after the one before, bytes. And when and where each began."""
    run = create_run(home, f"r{len(list(home.glob('runs/*')))}")
    marks, now, size, due, lines = Marks(run), 1000.0, 0, math.inf, []
    log = run.log_path(*TASK)
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        for gap, length in growths:
            now += gap
            if due <= now:
                marks.write(due)
            lines.append((now, size))
            file.write(b"x" * (length - 1) + b"\n")
            size += length
            due_s = marks.grew(*TASK, size)
            due = due if due_s is None else now + due_s
    marks.write(due)
    return run, lines


GAPS = st.one_of(st.floats(0.001, 3), st.floats(0.001, 0.3), st.just(3600.0))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(GAPS, st.integers(1, 50)), min_size=1, max_size=40), st.floats(-2, 2), st.data())
def test_nothing_is_missed_and_nothing_is_shown_that_is_a_second_too_old(
    runs: Path, growths: list[tuple[float, int]], off: float, data: st.DataObject
) -> None:
    run, lines = written(runs, growths)
    at = data.draw(st.sampled_from(lines))[0] + off
    kept = KeptMarks(run, at)
    offset = kept.offset(*TASK)
    assert [when for when, start in lines if start < offset and when >= at] == []
    assert [when for when, start in lines if start >= offset and when < at - EVERY_S - 1e-6] == []
    assert lines[-1][0] <= kept.last_time(*TASK) <= lines[-1][0] + EVERY_S


def test_a_line_that_was_begun_before_is_shown_whole(tmp_path: Path) -> None:
    run, _ = written(tmp_path, [(1, 10), (1, 10)])
    marks = Marks(run)
    with run.log_path(*TASK).open("ab") as file:
        file.write(b"begun ")
        marks.grew(*TASK, 26)
        marks.write(2000.0)
        file.write(b"and ended\n")
        marks.grew(*TASK, 36)
        marks.write(3000.0)
    assert KeptMarks(run, 2500.0).offset(*TASK) == 20


def test_each_byte_has_the_time_of_the_first_mark_that_has_it(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r")
    marks = Marks(run)
    for size, at in ((4, 1000.0), (9, 2000.0)):
        marks.grew(*TASK, size)
        marks.write(at)
    kept = KeptMarks(run)
    assert [*kept.split(*TASK, b"0123456789ab", 12)] == [(b"0123", 1000.0), (b"45678", 2000.0), (b"9ab", None)]
    assert [*kept.split(*TASK, b"567", 8)] == [(b"567", 2000.0)]
    assert [*kept.split(*TASK, b"", 4)] == []


def test_many_streams_are_marked_less_often(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r")
    marks = Marks(run)
    for delays in ([EVERY_S, *[None] * 99], [100 / MOST_A_SECOND, *[None] * 99]):
        assert [marks.grew(f"worker-{index}", 1, "stdout", 5) for index in range(100)] == delays
        marks.write(10.0)
    assert marks.grew(*TASK, 6) == 100 / MOST_A_SECOND
    marks.write(20.0)
    assert marks.grew(*TASK, 7) == EVERY_S
    assert (run.path / "marks").stat().st_mode & 0o777 == 0o600


def test_what_nobody_has_marked_is_shown_from_the_beginning(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r")
    kept = KeptMarks(run, 5.0)
    assert (kept.offset(*TASK), kept.last_time(*TASK)) == (0, 0.0)
    (run.path / "marks").write_text("5.5 worker-0.1.stdout=7\n6.5 worker-0.1.std")
    assert KeptMarks(run).last_time(*TASK) == 5.5


def test_a_disk_without_room_costs_marks_and_no_more(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r")
    marks = Marks(run)
    (run.path / "marks").mkdir()
    marks.grew(*TASK, 1)
    marks.write(5.0)


def test_a_line_that_a_full_disk_has_torn_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    run, _ = written(tmp_path, [(1, 10), (1, 10)])
    path, limits = run.path / "marks", resource.getrlimit(resource.RLIMIT_FSIZE)
    marks, kept = Marks(run), path.read_text()
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + 25, limits[1]))  # as a disk that has room for so many bytes
    try:
        marks.grew(*TASK, 30)
        marks.write(2000.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == f"{kept}\n2000.0 worker-0.1.stdout=3"[: len(kept) + 25]
    marks.grew(*TASK, 40)
    marks.write(3000.0)
    assert path.read_text().splitlines()[-1] == "3000.0 worker-0.1.stdout=40"
    with path.open("ab") as file:
        file.write(b"3500.0 worker-0.1.stdout=4000.0 worker-0.1.stdout=50\n3600.0\n\n\0\xff\n4500.0 worker-0.1.stdout=60\n")
    assert KeptMarks(run).last_time(*TASK) == 4500.0
