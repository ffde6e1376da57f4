"""The handle of a run whose controller is a stand-in: what `Run` reads of a run directory, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator import Run
from orchestrator.record.storage.run_directory import RunDir
from orchestrator.record.storage.run_store import create_run


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "home", "one")


def over(rundir: RunDir) -> Run:
    """The handle of a run whose controller has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return Run(rundir, process)


def test_all_output_of_a_run_that_is_over_is_read_also_after_a_long_line(rundir: RunDir) -> None:
    text = "x" * 200_000
    rundir.append_output("worker-0", 1, "stdout", 0, f"{text}\nlast line\n".encode())
    assert [line.text for line in over(rundir).lines()] == [text, "last line"]


def test_the_events_of_a_run_are_read_past_a_torn_line(rundir: RunDir) -> None:
    (rundir.path / "events.jsonl").write_text('{"event":"a"}\n{"event":"tor\n\n[1]\n{"event":"b"}\n')
    assert list(over(rundir).events) == [{"event": "a"}, {"event": "b"}]
