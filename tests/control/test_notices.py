"""``--notify``: a command that is told what happens in a run, and never changes how the run ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.control import notices
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster, Outcome, Phase, Verdict
from tests.conftest import Orch
from tests.live import LiveRun, wait_until

TELL = """
import json, os, sys
event = json.load(sys.stdin)
event["env"] = {name: value for name, value in os.environ.items() if name.startswith("ORCH_")}
print(json.dumps(event), file=open("told.jsonl", "a"))
print("said by the hook")
"""
Script = Callable[..., Path]


@pytest.fixture
def told(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    (tmp_path / "tell.py").write_text(TELL)
    return lambda: [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]


COMMAND = f"{sys.executable} tell.py"


def test_each_event_of_a_run_is_told_in_order(orch: Orch, script: Script, told: Callable[[], list[dict[str, Any]]], run: LiveRun) -> None:
    script("import os\nif os.environ['ORCH_ATTEMPT'] == '1':\n    raise KeyError('first')\n")
    orch("up", "script.py", "--strategy", "none", "--max-restarts", "1", "--notify", COMMAND, "--name", "told", check=0)
    found = told()
    kinds = [event["event"] for event in found if event["event"] != "note"]
    assert kinds == ["started", "attempt_failed", "started", "ended"]
    assert [event["attempt"] for event in found if event["event"] == "started"] == [1, 2]
    failed = next(event for event in found if event["event"] == "attempt_failed")
    assert (failed["cause"]["task"], failed["cause"]["failure"]["type"], failed["cause"]["failure"]["message"]) == (
        "worker-0",
        "KeyError",
        "'first'",
    )
    assert "worker-0" in failed["text"]
    last = found[-1]
    assert (last["outcome"], last["exit_code"], last["name"], last["directory"]) == ("succeeded", 0, "told", str(run.path))
    assert last["env"]["ORCH_EVENT"] == "ended"
    assert (run.path / "notify.log").read_text() == "said by the hook\n" * len(found)


def test_a_run_that_never_began_is_told_too(orch: Orch, told: Callable[[], list[dict[str, Any]]], script: Script) -> None:
    script("def broken(:\n")
    orch("up", "script.py", "--strategy", "none", "--notify", COMMAND, check=2)
    (event,) = told()
    assert (event["event"], event["exit_code"]) == ("ended", 2)
    assert "is not valid Python" in event["text"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("./none.sh", "--notify: ./none.sh ended with exit code 127 (event "),
        ("sh -c 'cat >/dev/null; exit 3'", "--notify: sh ended with exit code 3 (event "),
        ("true", ""),  # it does not read its stdin
        ("sh -c 'x", "--notify: sh ended with exit code 2 (event "),
        ("cd / && false | tr a b > /dev/null; exit 4", "--notify: cd ended with exit code 4 (event "),
        (" ", ""),
    ],
)
def test_a_command_that_fails_is_a_note_and_no_failure(orch: Orch, script: Script, command: str, said: str) -> None:
    script("")
    done = orch("up", "script.py", "--strategy", "none", "--notify", command, check=0)
    assert done.err.count("--notify") == bool(said)
    assert said in done.err


def test_a_command_that_hangs_delays_the_end_by_some_seconds_only_and_is_killed(
    orch: Orch, script: Script, run: LiveRun, tmp_path: Path
) -> None:
    script("")
    began = time.monotonic()
    command = "sh -c 'echo $$ >>pids; sleep 1000 & echo $! >>pids; sleep 1001'"
    done = orch("up", "script.py", "--strategy", "none", "--notify", command, check=0, env={"ORCH_TIME_SCALE": "0.2"})
    assert 2 < time.monotonic() - began < 60
    assert "--notify: the last commands had not ended 2 s after the run" in done.err
    assert json.loads((run.path / "result.json").read_text())["outcome"] == "succeeded"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of the command, for which no orch waits any more")


def test_a_command_that_hangs_is_told_of(orch: Orch, script: Script) -> None:
    script("import time\ntime.sleep(2)")
    done = orch("up", "script.py", "--strategy", "none", "--notify", "sleep 1000", check=0, env={"ORCH_TIME_SCALE": "0.01"})
    assert "--notify: sleep had not ended after 0.3 s, and was killed (event started; output: notify.log)" in done.err


def test_at_most_twenty_events_wait_and_the_last_one_always_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is told, `MOST_WAITING` wait in their order, further ones are left out with a line each; `ended` is told last."""
    wait = "import json, os, sys, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
    (tmp_path / "tell.py").write_text(f"{wait}print(json.load(sys.stdin)['text'], flush=True)\n")
    (tmp_path / "run").mkdir()
    start: Any = SimpleNamespace(
        run=SimpleNamespace(run_id="a", path=tmp_path / "run"), spec=SimpleNamespace(notify=COMMAND, name="a", workdir=str(tmp_path))
    )
    said: list[str] = []
    told = notices.Notices(start, said.append)
    begun = replace(Cluster(), phase=Phase.RUNNING)
    note = partial(told.on_event, begun, begun)
    note(events.RunNoted("0", 1.0))
    wait_until(told._waiting.empty, "the first command")
    for number in range(1, 30):
        note(events.RunNoted(str(number), 1.0))
    monkeypatch.setattr(notices, "LAST_S", 60.0)
    (tmp_path / "go").touch()
    told.on_end(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0))
    lines = (tmp_path / "run/notify.log").read_text().splitlines()
    left_out = f"orch: --notify: {notices.MOST_WAITING} events wait already, so note was left out"
    assert lines == [left_out] * 9 + [*map(str, range(21)), "succeeded"]
    assert said == [f"note: {left_out.removeprefix('orch: ')}"], "once on the screen"
