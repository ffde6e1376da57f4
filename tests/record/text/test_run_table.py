"""The table of a run's tasks, and tables as such."""

from __future__ import annotations

import pytest

from orchestrator.model.run import events
from orchestrator.record.text import run_list
from orchestrator.record.text.format import aligned
from orchestrator.record.text.run_list import RunSummary
from orchestrator.record.text.run_table import table
from tests.record.states import BAD, TAMED, cluster, exited


def test_the_table_has_a_line_a_task_in_straight_columns() -> None:
    state = cluster(
        events.TaskUp("worker-0", 1, 101.0),
        events.TaskReported("worker-0", 1, {"step": 12, "loss": 0.123456789}, 102.0),
        events.TaskWaiting("worker-1", 1, "no port is open yet", 103.0),
    )
    lines = table(state, now=161.0).splitlines()
    assert [line.split()[0] for line in lines] == ["TASK", "worker-0", "worker-1", "worker-2"]
    assert lines[1].endswith("1 min 01 s  step=12 loss=0.1235")
    assert lines[2].endswith("no port is open yet")
    assert len({line.index("local") for line in lines[1:]} | {lines[0].index("HOST")}) == 1
    assert all(line == line.rstrip() for line in lines)


def test_a_task_that_orch_stopped_is_not_called_killed() -> None:
    state = cluster(exited("worker-0", 7), exited("worker-1", 143, stopped=True), exited("worker-2", 0, stopped=True))
    lines = table(state, now=161.0).splitlines()
    assert lines[1].endswith("10.0 s  exit code 7")
    assert lines[2].endswith("stopped by orch (SIGTERM)")
    assert lines[3].endswith("10.0 s")


def test_a_narrow_terminal_cuts_the_lines_of_the_tables() -> None:
    state = cluster(events.TaskWaiting("worker-1", 1, "no port is open yet", 103.0))
    full, narrow = table(state, now=161.0).splitlines(), table(state, now=161.0, width=55).splitlines()
    assert narrow == [line if len(line) <= 55 else f"{line[:54]}…" for line in full] != full
    late = RunSummary("one", "/runs/one", "timed_out", result={"exit_code": 124, "cause": {"task": "", "what": "the run was not over"}})
    away = RunSummary("two", "/runs/two", "broken", result={"exit_code": 125, "cause": {"task": "", "what": "host b cannot be reached"}})
    lines = run_list.table([late, away]).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["RUN", "one", "two"]
    assert " timed out (124) " in lines[1]
    assert lines[1].endswith("  the run was not over")
    assert " failed (125) " in lines[2]
    assert lines[2].endswith("  host b cannot be reached")
    assert {len(line) for line in run_list.table([late, away], width=60).splitlines()} == {60}


def test_what_a_task_reports_stays_in_its_line_of_the_table() -> None:
    state = cluster(events.TaskReported("worker-0", 1, {"phase": f"{BAD}\n\nworker-9  local  up\x0b"}, 102.0))
    lines = table(state, now=161.0).splitlines()
    assert [line.split()[0] for line in lines] == ["TASK", "worker-0", "worker-1", "worker-2"]
    assert lines[1].endswith(f"phase={TAMED} worker-9 local up")


@pytest.mark.parametrize(
    ("rows", "right", "lines"),
    [
        ([("A", "BB", "C"), ("aaa", "b", "")], (), ["A    BB  C", "aaa  b"]),
        ([("A", "BB", "C"), ("aaa", "b", "c")], (1,), ["A    BB  C", "aaa   b  c"]),
        ([("A",), ("aaa",)], (0,), ["A", "aaa"]),
    ],
)
def test_columns_are_straight(rows: list[tuple[str, ...]], right: tuple[int, ...], lines: list[str]) -> None:
    assert aligned(rows, right) == lines
