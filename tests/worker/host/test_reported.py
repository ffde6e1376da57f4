"""What an agent finds in the file of a task's reports: the program's own, and beside them what was counted of its input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from worker.host.log_files import TaskOutput
from worker.machine.directory import Directory
from worker.protocol.task_files import INPUT, REPORTS


def test_the_newest_of_each_kind_are_told_together(tmp_path: Path) -> None:
    output = TaskOutput("worker-0", 1, Directory(str(tmp_path)), "log")
    file = tmp_path / "log" / REPORTS
    file.parent.mkdir()

    def add(at: float, **values: Any) -> list[dict[str, Any]]:
        with file.open("a") as end:
            end.write(json.dumps({"at": at, **values}) + "\n")
        return output.last_reports()

    assert output.last_reports() == []
    assert add(1.0, step=1) == [{"at": 1.0, "step": 1}]
    assert add(2.0, **{INPUT: {"steps": 5}}) == [{"at": 2.0, "step": 1, INPUT: {"steps": 5}}]
    assert output.last_reports() == []
    assert add(3.0, step=2) == [{"at": 3.0, "step": 2, INPUT: {"steps": 5}}]


def test_a_report_that_is_not_finite_is_told_before_the_newest(tmp_path: Path) -> None:
    """Else the finite ones after it would hide it, and --fail-on-nan would not see it."""
    output = TaskOutput("worker-0", 1, Directory(str(tmp_path)), "log")
    file = tmp_path / "log" / REPORTS
    file.parent.mkdir()
    for values in ("nan", 0.5), ("inf", 0.4), (0.3, 0.3), ("nan", 0.2):
        with file.open("a") as end:
            for step, loss in enumerate(values):
                end.write(json.dumps({"at": 1.0, "step": step, "loss": loss}) + "\n")
        told = [(report["step"], report["loss"]) for report in output.last_reports()]
        assert told == [*([(0, values[0])] if isinstance(values[0], str) else []), (1, values[1])]


def test_the_first_report_of_the_program_is_seen_before_the_next_one_is_due(tmp_path: Path) -> None:
    """So the record has the step at which an attempt has begun."""
    output = TaskOutput("worker-0", 1, Directory(str(tmp_path)), "log")
    (tmp_path / "log").mkdir()
    with (tmp_path / "log" / REPORTS).open("a", buffering=1) as file:
        assert not output.begins_to_report()
        file.write(json.dumps({"at": 1.0, INPUT: {"steps": 1}}) + "\n")
        assert not output.begins_to_report()
        file.write(json.dumps({"at": 2.0, "step": 21}) + "\n")
        assert output.begins_to_report()
        assert output.last_reports() == [{"at": 2.0, "step": 21, INPUT: {"steps": 1}}]
        assert not output.begins_to_report()
