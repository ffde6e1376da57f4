"""`prepare:` in real runs: once per host, before the tasks; its log, its failure, its end. No TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, wait_until_gone, wait_until_ready, write_script
from worker.host.program import preparation_stamps
from worker.protocol.messages import Program, TaskOrder

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
    done = orch("up", "script.py", "-n", "3", "--prepare", "echo fetching; python script.py", "--verbose", check=0)
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
    running = orch.start("up", "script.py", "-n", "2", "--prepare", "python fetch.py", "--grace", "30")
    left = wait_until_ready(tmp_path, "prepare-0")
    running.signal(signal.SIGINT)
    assert "cancelled" in running.wait(check=130).err
    wait_until_gone(left.values())
    done = orch("up", "script.py", "-n", "1", "--prepare", "sleep 1000", "--prepare-timeout", "0.1")
    assert done.code == 124
    assert "prepare-0 has not ended 0.1 s after the start (--prepare-timeout)" in done.err
    assert not (tmp_path / "a task has started").exists()
    missing = orch("up", "script.py", "--set", "prepare.run=[./none.sh]")
    assert missing.code == 2
    assert "the command './none.sh' does not exist" in missing.err


def test_restarts_do_not_prepare_again_and_once_for_skips_what_has_succeeded(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(
        tmp_path,
        """
        if not Path('failed').exists():
            tell('failed')
            sys.exit(1)
        if Path('hold').exists():
            wait_for('go')
        """,
    )
    (tmp_path / "urls.txt").write_text("a")
    count = {"run": "echo x >> made.txt; echo $ORCH_TASK", "once_for": ["urls.txt", "made*"]}
    asked = ("up", "script.py", "-n", "1", "--set", f"prepare={json.dumps(count)}")

    def made() -> int:
        return len((tmp_path / "made.txt").read_text().splitlines())

    first = orch(*asked, "--max-restarts", "1", "--set", "restart.backoff_s=0", check=0)
    assert first.out.count("prepare-0 | prepare-0") == 1
    assert made() == 1
    (tmp_path / "hold").touch()
    skipped = orch(*asked, "-d", check=0)  # which returns when the tasks have started, though no preparation has
    assert "prepare-0 is not run: it succeeded at " in skipped.err
    (tmp_path / "go").touch()
    orch("wait", check=0)
    assert made() == 1
    assert orch("logs", "prepare", check=0).out == ""
    (tmp_path / "urls.txt").write_text("ab")
    orch(*asked, check=0)
    assert made() == 2
    for _ in range(2):  # another variable counts as another command
        orch(*asked, "--env", "WHAT=digits", check=0)
        assert made() == 3
    lost = {**count, "once_for": ["nowhere.txt"]}
    for _ in range(2):
        done = orch("up", "script.py", "-n", "1", "--set", f"prepare={json.dumps(lost)}", check=0)
        assert "prepare.once_for names 'nowhere.txt', which is not there though the command has succeeded" in done.err
    assert made() == 5


def test_a_user_without_a_cache_is_told_why_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    order = TaskOrder("prepare-0", 1, Program("command", "true"), str(tmp_path), "logs", once_for=())
    assert preparation_stamps.find(order) == ""
    assert "cannot record that prepare succeeded (there is no directory" in preparation_stamps.keep(order)
