"""`orch ps --timeline`, the table of the start, and `--trace`, the file of the trace."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Orch
from tests.made_up_run import MadeUpRun


def test_it_shows_the_phases_or_writes_a_trace(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    _, head, *rows, slowest = orch.in_process("ps", "--timeline", check=0).out.splitlines()
    assert head.split()[0] == "TASK"
    assert rows[0].startswith("worker-0 ")
    assert "slowest" in slowest
    assert orch.in_process("ps", "--trace", "t.json", check=0).out == "t.json\n"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    told = orch.in_process("ps", "--trace", "no/such/place.json")
    assert told.code == 125
    assert "no/such/place.json cannot be written: No such file or directory" in told.err
