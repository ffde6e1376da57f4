"""`make nightly`: the parts that a commit chooses in CI, and what becomes of a part that fails or takes too long."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest

from tests import nightly
from tests.conftest import ROOT
from tests.judge.__main__ import AREAS
from tests.nightly import FAILED, LATE, PARTS, PASSED, Part, run, shorten

EACH = sorted(command for part in PARTS for command in part.short)


def test_each_short_command_has_its_turn_and_no_commit_runs_longer_than_it_may() -> None:
    turns = [shorten(PARTS, number, 12) for number in range(1000)]
    assert all(turns)
    assert max(sum(part.minutes for part in of_commit) for of_commit in turns) <= 12
    assert {part.command for of_commit in turns for part in of_commit} == {*EACH}


def test_with_time_enough_each_short_command_runs_once() -> None:
    assert sorted(part.command for part in shorten(PARTS, 7, 300)) == EACH


def test_every_area_of_the_judge_has_its_turn() -> None:
    assert {area.split()[0] for area in nightly._AREAS} == {*AREAS}


def test_every_slow_test_has_its_turn() -> None:
    """In the files of one group or another, of which the shell finds the names."""
    patterns = [word for group in nightly._SLOW_TESTS for word in group.split()]
    chosen = {
        path for pattern in patterns for each in ROOT.glob(pattern) for path in ([each] if each.is_file() else each.rglob("test_*.py"))
    }
    slow = {path for path in ROOT.glob("tests/**/test_*.py") if re.search(r"(?m)^(@|pytestmark .*)pytest\.mark\.slow", path.read_text())}
    assert slow - chosen == set()


def test_the_table_names_the_part_that_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nightly, "PARTS", (Part("good", "true", 1), Part("bad", "exit 3", 1, ("true",), 1)))
    assert nightly.main([]) == 1
    *_, good, bad = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in good.split("|")[1:-1]] == ["good", "0.0", "1", PASSED]
    assert [cell.strip() for cell in bad.split("|")[1:-1]] == ["bad", "0.0", "1", FAILED]
    assert nightly.main(["--minutes", "12"]) == 0
    assert nightly.main(["good"]) == 0


def test_a_part_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "ENDS_S", 0.3)
    hardy = f"trap '' TERM; echo $BASHPID > {tmp_path}/hardy; while true; do sleep 0.05; done"
    apart = f"setsid sleep 1000 & echo $! > {tmp_path}/apart"
    began = time.monotonic()
    assert run(f"({hardy}) & {apart}; wait", 1.0) == LATE
    assert time.monotonic() - began < 30
    left = [pid for name in ("hardy", "apart") if psutil.pid_exists(pid := int((tmp_path / name).read_text()))]
    assert [process for process in map(psutil.Process, left) if process.status() != psutil.STATUS_ZOMBIE] == []
