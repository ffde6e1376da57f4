"""`orch report`: the file that it writes, and what it says when it cannot."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Orch
from tests.made_up_run import MadeUpRun


def test_it_writes_the_page_here_and_prints_its_name(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    assert orch.in_process("report", check=0).out == "made-up-2.html\n"
    assert "<title>made-up-2: succeeded</title>" in (tmp_path / "made-up-2.html").read_text()
    assert orch.in_process("report", "--bundle", "-o", "mine.zip", check=0).out == "mine.zip\n"
    assert (tmp_path / "mine.zip").read_bytes().startswith(b"PK")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("made-up-2.html", "mine.zip")} == {0o600}


def test_a_place_that_cannot_be_written_is_said(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    told = orch.in_process("report", "-o", "no/such/place.html")
    assert told.code == 125
    assert "no/such/place.html cannot be written: No such file or directory" in told.err
