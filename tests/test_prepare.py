"""`prepare:` in real runs: once per host, before the tasks; its log, its failure, its end. No TensorFlow."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, wait_until_gone, wait_until_ready, write_script

LOAD = """
def write():
    with open("data.json", "w") as file:
        file.write('{"rows": [1, 2')
        file.flush()
        tell("half-written")
        wait_for("somebody-has-looked")
        file.write(', 3]}')

def load():  # as Keras's load_data() does: whoever finds no file gets it
    if not Path("data.json").exists():
        write()
    rows = json.loads(Path("data.json").read_text())["rows"]
    print("rows", rows, flush=True)

if TASK == "prepare-0":
    tell("somebody-has-looked")
    write()
elif TASK == "worker-0":
    load()
else:
    wait_for("half-written")
    try:
        load()
    finally:
        tell("somebody-has-looked")
"""


def test_workers_that_load_at_once_read_half_a_file_unless_it_is_prepared(
    orch: Orch, tmp_path: Path, run: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "another" / "python"  # which is before the tasks' Python on PATH
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 7\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    write_script(tmp_path, LOAD)
    raced = orch("up", "script.py", "-n", "3")
    assert raced.code == 1
    assert "JSONDecodeError" in raced.err
    for name in ("data.json", "half-written", "somebody-has-looked"):
        (tmp_path / name).unlink()
    done = orch("up", "script.py", "-n", "3", "--prepare", "echo fetching; python script.py", check=0)
    assert done.out.splitlines()[0] == "prepare-0 | fetching"
    assert sorted(done.out.splitlines()[1:]) == [f"worker-{index}  | rows [1, 2, 3]" for index in range(3)]
    assert "; the tasks start" in done.err
    started = run.event("task_started", task="worker-0")
    assert run.event("task_swept", task="prepare-0")["at"] <= started["at"]
    shown = orch("ps", check=0).out
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("prepare")] == [["prepare-0", "local", "succeeded"]]
    assert orch("logs", "prepare", check=0).out == "prepare-0 | fetching\n"
    assert "PREPARED" in orch("ps", "--timeline", check=0).out


def test_its_failure_is_the_first_cause_and_its_end_leaves_nothing(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "tell('a task has started')")
    (tmp_path / "fetch.py").write_text(write_script(tmp_path, "leave_behind('ready(); sleep()', own_session=True)\nsleep()").read_text())
    done = orch("up", "script.py", "-n", "2", "--prepare", "echo no such bucket: digits >&2; exit 9")
    assert done.code == 9
    assert "first failure: prepare-0 on local: exit code 9" in done.err
    assert "orch:     no such bucket: digits\n" in done.err
    assert "not started because of it: worker-0..1" in done.err
    assert run.cause()["task"] == "prepare-0"
    running = orch.start("up", "script.py", "-n", "2", "--prepare", "python fetch.py", "--set", "timeouts.grace_s=30")
    left = wait_until_ready(tmp_path, "prepare-0")
    running.signal(signal.SIGINT)
    assert "cancelled" in running.wait(check=130).err
    wait_until_gone(left.values())
    done = orch("up", "script.py", "-n", "1", "--prepare", "sleep 1000", "--set", "timeouts.prepare_s=0.1")
    assert done.code == 124
    assert "prepare-0 has not ended 0.1 s after the start (timeouts.prepare_s)" in done.err
    assert not (tmp_path / "a task has started").exists()
    missing = orch("up", "script.py", "--set", "prepare.run=[./none.sh]")
    assert missing.code == 2
    assert "the command './none.sh' does not exist" in missing.err


def test_a_restart_does_not_prepare_again_and_a_detached_run_is_prepared_before_its_caller_goes(
    orch: Orch, tmp_path: Path, run: LiveRun
) -> None:
    write_script(tmp_path, "if not Path('failed').exists():\n    tell('failed')\n    sys.exit(1)\nwait_for('go')")
    asked = ("up", "script.py", "-n", "1", "--prepare", "echo x >> made; echo $ORCH_TASK", "--max-restarts", "1")
    orch(*asked, "-d", "--set", "restart.backoff_s=0", check=0)
    assert (tmp_path / "made").read_text() == "x\n"
    (tmp_path / "go").touch()
    orch("wait", check=0)
    assert orch("logs", "prepare", check=0).out == "prepare-0 | prepare-0\n"
    assert (tmp_path / "made").read_text() == "x\n"
