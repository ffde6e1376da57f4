"""Equal lines of several tasks, shown once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.text.log_view import LogView
from orchestrator.record.text.same_lines import MOST_HELD, SameLines, SharedLine

TASKS = ["a", "b", "c"]


def words(lines: list[SharedLine]) -> list[str]:
    return [f"{''.join(line.tasks)}:{line.text}" for line in lines]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a1 b1 c1", "abc:1"),
        ("a1 a2 b1 b2 c1 c2", "abc:1 abc:2"),
        ("c1 b1 a1", "abc:1"),
        ("a1 b2 c1", "ac:1 b:2"),
        ("a1 a2 b2 b1 c1 c2", "ac:1 abc:2 b:1"),  # b wrote 2 before 1, and this stays
        ("a1 a1 b1", "ab:1 a:1"),
        ("a1 b1 a1 b1 c1 c1", "abc:1 abc:1"),
        ("a1 ax b1 bx a2 b2 by c2", "ab:1 ab:x abc:2 b:y"),
        ("", ""),
    ],
)
def test_equal_lines_are_one_line_and_each_task_keeps_its_order(written: str, shown: str) -> None:
    lines = SameLines(TASKS)
    found = [line for one in written.split() for line in lines.add(one[0], [one[1]], 0.0)]
    assert words([*found, *lines.release()]) == shown.split()


def test_a_line_waits_for_the_other_tasks_but_not_for_long() -> None:
    lines = SameLines(TASKS, apart_s=2.0)
    assert lines.add("a", ["1", "2"], 10.0) == []
    assert lines.add("b", ["1"], 11.0) == []
    assert lines.due(11.9) == []
    assert words(lines.due(12.0)) == ["ab:1", "a:2"]
    assert words(lines.add("c", ["1"], 20.0) + lines.release()) == ["c:1"], "it came too late to be one with the others"


def test_lines_that_nobody_shares_are_held_in_bounds() -> None:
    lines = SameLines(TASKS)
    shown = lines.add("a", [str(number) for number in range(MOST_HELD + 5)], 0.0)
    assert words(shown) == [f"a:{number}" for number in range(5)]
    assert len(lines.release()) == MOST_HELD


@given(st.lists(st.tuples(st.sampled_from(TASKS), st.sampled_from("xyz"), st.floats(0, 3)), max_size=40))
def test_no_line_is_lost_and_none_is_invented(written: list[tuple[str, str, float]]) -> None:
    lines, at, shown = SameLines(TASKS, apart_s=2.0), 0.0, []
    for task, text, pause in written:
        at += pause
        shown += lines.add(task, [text], at)
    shown += lines.release()
    for task in TASKS:
        assert [line.text for line in shown if task in line.tasks] == [text for one, text, _ in written if one == task]


def test_a_view_names_the_tasks_of_a_line() -> None:
    view = LogView([f"worker-{index}" for index in range(4)], once_s=2.0)
    shown = [view.render(f"worker-{index}", "stdout", f"loading\nI am {index}\n".encode(), 10.0) for index in range(4)]
    assert shown == ["", "", "", "worker-0..3 | loading\n"]
    assert view.idle(11.0) == []
    own = "".join(f"worker-{index}    | I am {index}\n" for index in range(4))
    assert view.idle(12.0) == [("stdout", own)]
    view.render("worker-1", "stderr", b"odd\n", 13.0)
    view.render("worker-3", "stderr", b"odd\n", 13.1)
    assert view.finish() == [("stderr", "worker-1, worker-3 | odd\n")]


def test_a_pattern_and_times_go_with_lines_that_are_shown_once() -> None:
    view = LogView(["worker-0", "worker-1"], once_s=2.0, grep=re.compile("loss"), timestamps=True)
    shown = [view.render(f"worker-{index}", "stdout", b"loss 1\nother\n", 1000.0 + index) for index in (0, 1)]
    assert shown[0] == ""
    assert re.fullmatch(r"\d\d:\d\d:40\.000 worker-0\.\.1 \| loss 1\n", shown[1])
