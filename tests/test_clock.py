"""A system clock that is set during a run, and clocks that differ."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from orchestrator.backends.connection.incoming_frames import DRIFT, HostClock
from orchestrator.control.examination import surely_ahead
from tests.clock import Clock
from tests.conftest import Orch
from tests.live import LiveRun, write_script
from worker.machine import clock
from worker.protocol import messages


@pytest.mark.parametrize("seconds", [86400, -86400])
@pytest.mark.parametrize("preload", [(), ("decimal",)], ids=["executed", "forked"])
def test_a_clock_that_is_set_during_a_run_changes_no_deadline_and_no_blame(
    orch: Orch, tmp_path: Path, seconds: int, preload: tuple[str, ...]
) -> None:
    ours = Clock(tmp_path, seconds)
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
    env = {**ours.env, "PYTHONPATH": ours.path}
    options = ("--python", str(ours.python), "--set", "timeouts.start_s=300", "--hang-timeout", "300", "--timeout", "300")
    done = orch("up", "script.py", "-n", "2", *options, env=env, check=1)
    result = LiveRun(tmp_path).result()
    assert result["cause"]["task"] == "worker-1"
    assert "ValueError: the cause" in done.err
    assert 0 <= result["ended_at"] - result["started_at"] < 250
    times = [event["at"] for event in LiveRun(tmp_path).events()]
    assert max(times) - min(times) < 250


def test_a_hosts_clock_is_known_by_its_fastest_frame() -> None:
    clock = HostClock()
    clock.compare(1000.0, 100.9)  # 900 ahead, and 0.9 under way
    clock.compare(1001.0, 101.1)
    assert clock.ahead_s == pytest.approx(899.9)
    clock.compare(1002.0, 105.0)  # this host is busy
    assert clock.ahead_s == pytest.approx(899.9, abs=0.001)
    for second in range(100_000):  # a day in which it falls behind
        clock.compare(1100.0 + second * (1 - DRIFT / 1.5), 200.0 + second)
    assert clock.ahead_s == pytest.approx(900 - 100_000 * DRIFT / 1.5, abs=0.1)


@pytest.mark.parametrize(("seems", "is_surely"), [(7.0, 7.0), (-3.0, 0.0), (-9.0, -4.0)])
def test_an_answer_that_was_long_under_way_makes_no_clock_late(seems: float, is_surely: float) -> None:
    assert surely_ahead(seems, took_s=5.0) == is_surely


LATE_SSH = """#!{python}
import os, subprocess, sys, threading, time

def pump(source, target, late):
    while data := os.read(source.fileno(), 65536):
        if late and late in data:
            time.sleep({late_s})
        target.write(data)
        target.flush()
    target.close()

os.environ["XDG_CACHE_HOME"] = {cache!r}
remote = subprocess.Popen(["sh", "-c", sys.argv[-1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
threading.Thread(target=pump, args=(sys.stdin.buffer, remote.stdin, b""), daemon=True).start()
pump(remote.stdout, sys.stdout.buffer, b'"python_version"')  # a field of the first frame
"""
"""In the place of ssh: the host is this machine, and what it says first is long under way."""


def test_a_host_that_is_slow_to_say_its_first_word_is_not_told_late_for_ever(orch: Orch, tmp_path: Path) -> None:
    ssh = tmp_path / "late-ssh"
    ssh.write_text(LATE_SSH.format(python=sys.executable, cache=str(tmp_path / "cache"), late_s=8))
    ssh.chmod(0o700)
    write_script(tmp_path, "tell('began', str(time.time()))")
    hosts = f'{{"far": {{"address": "127.0.0.1", "slots": 1, "python": "{sys.executable}"}}}}'
    settings = ("--set", f"backend.hosts={hosts}", "--set", f'backend.ssh=["{ssh}"]', "--set", "backend.code=unchecked")
    orch("up", "script.py", *settings, check=0)
    began = float((tmp_path / "began").read_text())
    assert -60 < LiveRun(tmp_path).event("task_started")["at"] - began < 5


def test_a_host_whose_clock_is_ahead_is_heard_in_our_time() -> None:
    failure = messages.Failure("E", "m", "t", 1060.0)
    clock = HostClock()
    heard = clock.translate(messages.TaskExited("worker-0", 1, 1, False, 1060.5, failure), "far", 1000.5)
    assert isinstance(heard, messages.TaskExited)
    assert (heard.at, heard.failure and heard.failure.at) == (1000.5, 1000.0)
    assert clock.translate(messages.RunNoted("text", 1061.5), "far", 1001.5) == messages.RunNoted("text", 1001.5, "far")
    assert clock.translate(messages.Pong(), "far", 1002.0) == messages.Pong()


@pytest.mark.parametrize("seconds", [86400, -86400])
def test_a_moment_that_the_system_clock_told_before_it_was_set_is_now(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr(clock, "_anchor", 1_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 500.0)
    monkeypatch.setattr(time, "time", lambda: 1_000_500.0)
    assert clock.from_system(1_000_498.0) == 1_000_498.0
    monkeypatch.setattr(time, "time", lambda: 1_000_500.0 + seconds)
    assert clock.from_system(1_000_498.0) == 1_000_500.0
    assert clock.from_system(1_000_498.0 + seconds) == 1_000_498.0


def test_a_moment_is_right_though_we_are_put_off_while_we_look_at_both_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_anchor", 1_000_000.0)
    looks = iter((500.0, 500.5, 500.5, 500.5))  # half a second between the first look at our clock and the one at the system's
    monkeypatch.setattr(time, "monotonic", lambda: next(looks))
    monkeypatch.setattr(time, "time", lambda: 1_000_500.5)
    assert clock.from_system(1_000_500.4) == 1_000_500.4
