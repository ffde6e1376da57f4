"""The handle of a run whose controller is a stand-in: what `Run` reads of a run directory, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import Run, UsageError, handle
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Outcome, Verdict
from orchestrator.record import follower, run_view
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from tests.live import held_run, plan_for


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RunDir]:
    run = create_run(tmp_path / "home", "one")
    yield run
    run.let_go()


def over(rundir: RunDir) -> Run:
    process = subprocess.Popen(["true"])
    process.wait()
    return Run(rundir, process)


def test_all_output_of_a_run_that_is_over_is_read_also_after_a_long_line(rundir: RunDir) -> None:
    text = "x" * 200_000
    rundir.append_output("worker-0", 1, "stdout", 0, f"{text}\nlast line\n".encode())
    assert [line.text for line in over(rundir).lines()] == [text, "last line"]


def test_a_handle_says_how_a_run_has_ended_before_anybody_waits_for_it(rundir: RunDir) -> None:
    assert repr(over(rundir)) == "<Run one: lost>"
    rundir.write_verdict(Verdict(Outcome.FAILED, 3, 1, 0.0, 1.0), {})
    assert repr(over(rundir)) == repr(Run(rundir)) == "<Run one: failed>"


@pytest.mark.parametrize("limit", ["soon", True, float("nan"), None])
def test_the_limit_of_a_wait_is_a_time(rundir: RunDir, limit: Any) -> None:
    assert over(rundir).wait("10m").outcome == over(rundir).wait(cast("float", Fraction(1, 2))).outcome == "lost", (
        "also a number of another kind"
    )
    if limit is not None:
        with pytest.raises(UsageError, match=f"timeout must be a time, not {limit!r}; write seconds, or a time with units: 90"):
            over(rundir).wait(limit)


def test_a_program_that_follows_a_large_run_rests_between_two_looks(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the 600 files of 300 tasks must not follow the one before at once."""
    rests: list[float] = []
    at = 0.0

    def look(path: Path) -> int:
        nonlocal at
        at += 0.01
        return 0

    class Clock:
        monotonic = staticmethod(lambda: at)
        sleep = staticmethod(rests.append)

    monkeypatch.setattr(run_view, "time", Clock)
    monkeypatch.setattr(follower, "size_of", look)
    run = over(rundir)
    rundir.append_output("worker-0", 1, "stdout", 0, b"x")
    ends = iter([True, True, False])
    monkeypatch.setattr(handle.Run, "is_running", property(lambda _: next(ends)))
    assert list(run.lines()) == []
    assert rests == [pytest.approx(0.4), pytest.approx(0.4)]  # two files


def test_the_events_of_a_run_are_read_past_a_torn_line(rundir: RunDir) -> None:
    (rundir.path / "events.jsonl").write_text('{"event":"a"}\n{"event":"tor\n\n[1]\n{"event":"b"}\n')
    assert list(over(rundir).events) == [{"event": "a"}, {"event": "b"}]


def test_a_report_of_nan_is_a_number_for_a_program(tmp_path: Path) -> None:
    """A sweep compares losses: ``min`` and ``isfinite`` fail for texts."""
    with held_run(tmp_path / "home") as (rundir, holder):
        rundir.record(events.TaskReported("worker-0", 1, {"loss": "nan", "norm": "-inf", "note": "nan.txt"}, 101.0))
        rundir.close()
        report = Run(rundir, holder).tasks["worker-0"].report
        assert math.isnan(report["loss"])
        assert (report["norm"], report["note"]) == (-math.inf, "nan.txt")


def test_a_task_that_will_be_has_no_output_yet(tmp_path: Path) -> None:
    with held_run(tmp_path / "home", workers=0) as (rundir, holder):
        assert Run(rundir, holder).logs("worker-0") == ""


def test_a_run_whose_directory_was_moved_is_read_and_asked_in_the_new_place(tmp_path: Path) -> None:
    with held_run(tmp_path / "home") as (rundir, holder):
        run = Run(rundir, holder)
        place = tmp_path / "elsewhere"
        rundir.path.rename(place)
        there = RunDir(place)
        there.record(events.TaskFirstOutput("worker-0", 1, 101.0))
        there.append_output("worker-0", 1, "stdout", 0, b"hello\n")
        assert (run.run_dir, list(run.tasks)) == (place, ["worker-0"])
        run.restart()
        assert holder.stdout is not None
        assert json.loads(holder.stdout.readline())["ask"] == "restart"
        there.write_verdict(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0), {})
        holder.kill()
        assert run.wait().outcome == "succeeded"
        assert [line.text for line in run.lines()] == ["hello"]
        assert [event["event"] for event in run.events] == ["run_begun", "planned", "task_first_output"]
        there.close()


def test_a_request_that_no_controller_can_act_on_is_refused(rundir: RunDir) -> None:
    with pytest.raises(UsageError, match="one is not running"):
        over(rundir).restart()
    for number in (0, 999):
        with pytest.raises(UsageError, match=f"{number} is no signal"):
            over(rundir).kill("worker-0", number)
    plan_for(rundir, 1)
    rundir.record(events.TaskStarted("worker-0", 1, 7, 2.0))
    with pytest.raises(UsageError, match="one is not running"):
        over(rundir).kill("worker-0")
    assert over(rundir).stacks() == {}
    rundir.close()


def test_a_forked_child_sees_that_the_run_goes_on(tmp_path: Path) -> None:
    with held_run(tmp_path) as (rundir, process):
        run = Run(rundir, process)
        if not (child := os.fork()):
            os._exit(0 if run.is_running and process.returncode is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert run.is_running
        process.kill()
        process.wait()
        assert not run.is_running
