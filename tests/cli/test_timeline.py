"""`orch timeline`: the table of the start, and the file of the trace."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Orch
from tests.made_up_run import MadeUpRun


def test_it_shows_the_phases_or_writes_a_trace(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    shown = orch.in_process("timeline", check=0).out
    assert shown == orch.in_process("ps", "--timeline", check=0).out.partition("\n")[2]
    assert orch.in_process("timeline", "--trace", "t.json", check=0).out == "t.json\n"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    told = orch.in_process("timeline", "--trace", "no/such/place.json")
    assert told.code == 125
    assert "no/such/place.json cannot be written: No such file or directory" in told.err
