"""Following the files of output of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.record.log_reader import LogReader
from orchestrator.record.run_store import create_run
from orchestrator.record.text.log_view import LogView


@pytest.mark.parametrize("merges", [False, True], ids=["by task", "by time"])
def test_of_a_file_that_became_shorter_the_new_lines_are_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str], merges: bool) -> None:
    run = create_run(tmp_path, "one")
    path = run.log_path("worker-0", 1, "stdout")
    path.parent.mkdir(parents=True)
    path.write_text("a long line of the beginning\n")
    reader = LogReader(run, ["worker-0"], LogView(["worker-0"]), ["stdout"], follows=True)
    if merges:
        reader.merge()
    assert reader.show()
    os.truncate(path, 0)
    assert not reader.show()
    with open(path, "a") as file:
        file.write("a new line\n")
    assert reader.show()
    run.close()
    assert [line.partition(" | ")[2] for line in capfd.readouterr().out.splitlines()] == ["a long line of the beginning", "a new line"]
