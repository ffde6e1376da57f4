"""A system clock that is set during a run, and clocks that differ. The machine's own is left alone: `time.time` jumps, in every process."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from orchestrator.backends.agents import in_our_time
from tests.live import LiveRun, write_script
from worker import contract

JUMP = """
import os, time
_real = time.time
def jumped():
    return _real() + (float(os.environ["JUMP_S"]) if os.path.exists(os.environ["JUMP_FILE"]) else 0.0)
time.time = jumped
"""


@pytest.mark.parametrize("seconds", [86400, -86400])
@pytest.mark.parametrize("preload", [(), ("decimal",)], ids=["executed", "forked"])
def test_a_clock_that_is_set_during_a_run_changes_no_deadline_and_no_blame(orch, tmp_path: Path, seconds: int, preload) -> None:
    # The controller takes it from PYTHONPATH; an agent is isolated from that, and takes it from its own interpreter's directory.
    (tmp_path / "patched").mkdir()
    (tmp_path / "patched" / "sitecustomize.py").write_text(JUMP)
    venv.create(tmp_path / "env")
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "jump.py").write_text(JUMP)
    (site / "jump.pth").write_text("import jump\n")
    text = """
    if TASK == "worker-0":
        before = time.time()
        tell("jump")
        assert abs(time.time() - before) > 80000
    wait_for("jump")
    ready()
    if TASK == "worker-1":
        wait_for("worker-0.ready")
        time.sleep(0.3)
        raise ValueError("the cause")
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(RuntimeError("only the consequence")))
    sleep()
    """
    write_script(tmp_path, text, preload)
    env = {"PYTHONPATH": str(tmp_path / "patched"), "JUMP_S": str(seconds), "JUMP_FILE": str(tmp_path / "jump")}
    options = ("--python", str(tmp_path / "env" / "bin" / "python"), "--start-timeout", "300", "--hang-timeout", "300", "--timeout", "300")
    done = orch("up", "script.py", "-n", "2", *options, env=env, check=1)
    result = LiveRun(tmp_path).result()
    assert result["cause"]["task"] == "worker-1"
    assert "ValueError: the cause" in done.err
    assert 0 <= result["ended_at"] - result["started_at"] < 250
    times = [event["at"] for event in LiveRun(tmp_path).events()]
    assert max(times) - min(times) < 250


def test_a_host_whose_clock_is_ahead_is_heard_in_our_time() -> None:
    failure = contract.Failure("E", "m", "t", 1060.0)
    frame = contract.Exited("worker-0", 1, 1, 1060.5, False, failure)
    heard = in_our_time(frame, 60.0)
    assert (heard.at, heard.failure.at) == (1000.5, 1000.0)
    assert in_our_time(contract.Gone(), 60.0) == contract.Gone()
