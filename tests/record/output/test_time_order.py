"""The output of several tasks by time, from the marks of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.text.time_order import LogStretch, in_order


def show(*stretches: LogStretch) -> list[str]:
    return [f"{piece.task}.{piece.attempt}.{piece.stream}<{piece.end}" for piece in in_order(stretches)]


def stretch(name: str, end: int, *marks: tuple[float, int], start: int = 0) -> LogStretch:
    task, attempt, stream = name.split(".")
    return LogStretch(task, int(attempt), stream, start, end, marks)


@pytest.mark.parametrize(
    ("stretches", "shown"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([stretch("w0.1.out", 0, (1.0, 5))], [], id="an empty file"),
        pytest.param([stretch("w0.1.out", 9)], ["w0.1.out<9"], id="no marks"),
        pytest.param(
            [stretch("w0.1.out", 9, (1.0, 4), (3.0, 9)), stretch("w1.1.out", 8, (2.0, 8))],
            ["w0.1.out<4", "w1.1.out<8", "w0.1.out<9"],
            id="by time",
        ),
        pytest.param(
            [stretch("w0.1.out", 4, (1.0, 4)), stretch("w0.1.err", 2, (1.0, 2)), stretch("w1.1.out", 4, (1.0, 4))],
            ["w0.1.out<4", "w0.1.err<2", "w1.1.out<4"],
            id="at one time as given",
        ),
        pytest.param(
            [stretch("w0.1.out", 9, (1.0, 4)), stretch("w1.1.out", 8, (2.0, 8))],
            ["w0.1.out<4", "w1.1.out<8", "w0.1.out<9"],
            id="what has no mark yet comes last",
        ),
        pytest.param(
            [stretch("w0.1.out", 9, (1.0, 4)), stretch("w0.2.out", 3, (2.0, 3)), stretch("w1.1.out", 8, (3.0, 8))],
            ["w0.1.out<4", "w0.1.out<9", "w0.2.out<3", "w1.1.out<8"],
            id="the end of an old attempt without a mark comes before the next attempt",
        ),
        pytest.param(
            [stretch("w0.1.out", 4, (5.0, 4)), stretch("w0.2.out", 3, (2.0, 3)), stretch("w1.1.out", 8, (3.0, 8))],
            ["w1.1.out<8", "w0.1.out<4", "w0.2.out<3"],
            id="a clock that went back does not mix attempts",
        ),
        pytest.param([stretch("w0.1.out", 9, (1.0, 4), (2.0, 9), start=4)], ["w0.1.out<9"], id="from the middle on"),
        pytest.param([stretch("w0.1.out", 5, (1.0, 4), (2.0, 9))], ["w0.1.out<4", "w0.1.out<5"], id="a mark beyond the end"),
    ],
)
def test_pieces_come_in_the_order_of_time(stretches: list[LogStretch], shown: list[str]) -> None:
    assert show(*stretches) == shown


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=5), min_size=1, max_size=4), st.integers(0, 3))
def test_every_byte_of_every_file_comes_once_and_in_order(grown: list[list[tuple[int, int]]], unmarked: int) -> None:
    """`grown`: for each task the seconds and the bytes by which its file grew."""
    stretches = []
    for number, steps in enumerate(grown):
        at, size, marks = 0.0, 0, []
        for seconds, more in steps:
            at, size = at + seconds, size + more
            marks.append((at, size))
        stretches.append(LogStretch(f"w{number}", 1, "out", 0, size + unmarked, marks))
    ends: dict[str, list[int]] = {}
    times = []
    for piece in in_order(stretches):
        ends.setdefault(piece.task, []).append(piece.end)
        times.append(float("inf") if piece.at is None else piece.at)
    assert times == sorted(times)
    for one in stretches:
        found = ends.get(one.task, [])
        assert found == sorted(set(found))
        assert (found[-1] if found else 0) == one.end
