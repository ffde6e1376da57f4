"""What ends on hosts with ssh, and how fast: the controller killed, a link cut, an sshd killed, a host that stalls. No TensorFlow."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bed import Bed
from tests.clock import Clock
from tests.conftest import Orch, Running
from tests.live import LiveRun, wait_until, wait_until_gone, wait_until_ready, write_script

pytestmark = pytest.mark.root

LOST_AFTER_S = 8
HEARD_OF_ONLY = ("--set", "backend.lost_after_s=3600")
"""What is noticed, is noticed because a connection has ended, and not by silence."""
RESISTING = """
leave_behind("ignore(); tell(f'child-of-{TASK}.ready', os.getpid()); sleep()", own_session=True)
ignore(*{*range(1, 32)} - {signal.SIGKILL, signal.SIGSTOP})
ready()
sleep()
"""


def start(orch: Orch, bed: Bed, hosts: str, *options: str) -> Running:
    return orch.start(
        *("up", "script.py", "-H", hosts, "--set", f"backend.ssh={json.dumps(bed.ssh)}"),
        *("--set", f"backend.lost_after_s={LOST_AFTER_S}", "--set", "timeouts.grace_s=1", *options),
    )


def start_resisting(orch: Orch, bed: Bed, directory: Path, *options: str) -> tuple[Running, dict[str, psutil.Process]]:
    """Three tasks on three hosts that only SIGKILL ends, each with a child in a session of its own."""
    write_script(directory, RESISTING)
    running = start(orch, bed, "hostA,hostB,hostC", *options)
    names = [f"worker-{index}" for index in range(3)]
    return running, wait_until_ready(directory, *names, *(f"child-of-{name}" for name in names))


def test_nothing_survives_a_controller_that_is_killed(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    running, processes = start_resisting(orch, bed, tmp_path, *HEARD_OF_ONLY)
    os.kill(run.controller().pid, signal.SIGKILL)
    wait_until_gone(processes.values())
    running.wait()


def test_a_cut_link_ends_the_tasks_on_both_sides_of_it(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    running, processes = start_resisting(orch, bed, tmp_path)
    bed["hostB"].cut()
    done = running.wait(check=125)
    assert f"lost host hostB: no message from it for {LOST_AFTER_S} s" in done.err
    assert run.cause()["host"] == "hostB"
    wait_until_gone(processes.values())


COUNTING = """
ready()
number = 0
while not os.path.exists("go"):
    print(f"{number:099d}", flush=number % 10 == 0)
    number += 1
    time.sleep(0.001)
"""


@pytest.mark.slow
def test_a_connection_that_ends_or_is_silent_is_made_again_and_nothing_is_lost_or_comes_twice(
    orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun
) -> None:
    write_script(tmp_path, COUNTING)
    running = start(orch, bed, "hostA,hostB", "--set", "backend.lost_after_s=20")
    wait_until_ready(tmp_path, "worker-0", "worker-1")

    def told(host: str) -> list[str]:
        notes = [event for event in run.events() if event["event"] == "run_noted" and event.get("host") == host]
        return [note["text"] for note in notes if "made again" in note["text"]]

    client = next(child for child in run.controller().children(recursive=True) if "hostA" in child.cmdline() and child.name() == "ssh")
    client.kill()
    wait_until(lambda: told("hostA"), "new connection after the end of ssh")
    bed["hostB"].end_sessions()
    wait_until(lambda: told("hostB"), "new connection after the end of sshd")
    bed["hostA"].cut()
    running.wait_for("host hostA: the connection was cut: no message from it")  # orch tries a new one, while the line is down
    asking = orch.start("stacks")  # the order waits for the new connection
    bed["hostA"].join()
    wait_until(lambda: len(told("hostA")) == 2, "new connection after a silence")
    wait_until(lambda: (run.path / "attempt-1" / "worker-0" / "stacks.txt").exists(), "stacks of worker-0")
    asking.wait()
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert "it was made again after" in done.err
    for task in ("worker-0", "worker-1"):
        lines = run.log(task).decode().splitlines()
        assert lines == [f"{number:099d}" for number in range(len(lines))]
        assert len(lines) > 1000
    assert (run.path / "attempt-1" / "worker-0" / "stacks.txt").read_text().count("Current thread") == 1
    assert {event["attempt"] for event in run.events() if event["event"] == "task_exited"} == {1}


def test_a_host_that_cannot_be_reached_again_is_lost_and_its_tasks_end(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    running, processes = start_resisting(orch, bed, tmp_path)
    bed["hostC"].stop_sshd()
    bed["hostC"].end_sessions()
    done = running.wait(check=125)
    assert re.search(f"lost host hostC: its agent .*; it could not be reached again for {LOST_AFTER_S} s", done.err)
    assert "stopped because of it" not in done.err or "worker-2" not in done.err
    wait_until_gone(processes.values())


def test_an_sshd_that_is_restarted_ends_nothing(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    write_script(tmp_path, "ready(); wait_for('go')")
    running = start(orch, bed, "hostA,hostB")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    bed["hostA"].stop_sshd()
    bed["hostA"].start_sshd()
    (tmp_path / "go").touch()
    running.wait(check=0)


def test_an_agent_that_is_killed_takes_its_tasks_along(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    running, processes = start_resisting(orch, bed, tmp_path)
    agent = next(event["pid"] for event in run.events() if event["event"] == "host_ready" and event["host"] == "hostA")
    os.kill(agent, signal.SIGKILL)
    done = running.wait(check=125)
    assert "lost host hostA: its agent " in done.err
    wait_until_gone([process for name, process in processes.items() if not name.startswith("child")])
    for process in processes.values():  # in a session of its own, with its agent killed: docs/how-it-works.md names it
        if process.is_running():
            process.kill()
    assert list((bed["hostA"].files / "tmp").glob("orch-agent-*"))
    write_script(tmp_path, "pass")
    start(orch, bed, "hostA").wait(check=0)  # the next agent takes away what the killed one has left; the fixture looks


def test_a_stalled_link_blocks_no_task_and_loses_no_byte(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    """Ten megabytes while the link is down: the task goes on, and afterwards everything is there."""
    write_script(
        tmp_path,
        """
        ready()
        wait_for("cut")
        for number in range(100_000):
            print(f"{number:099d}")
        tell("written")
        wait_for("go")
        print("the last words", file=sys.stderr)
        """,
    )
    running = start(orch, bed, "hostA,hostB", "--set", "backend.lost_after_s=30")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    bed["hostB"].cut()
    (tmp_path / "cut").touch()
    wait_until((tmp_path / "written").exists, "task that goes on")
    bed["hostB"].join()
    (tmp_path / "go").touch()
    running.wait(timeout=90, check=0)
    expected = "".join(f"{number:099d}\n" for number in range(100_000)).encode()
    for task in ("worker-0", "worker-1"):
        assert hashlib.sha256(run.log(task)).digest() == hashlib.sha256(expected).digest()
        assert run.log(task, "stderr") == b"the last words\n"


def test_a_full_disk_on_a_host_is_named_with_the_host(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    """The tasks' output lies in the host's own temporary directory there, and not below --home."""
    write_script(tmp_path, "while True: print('x' * 1000)")
    size = "mount -t tmpfs -o size=300k tmpfs"
    sshd = next(process for process in bed["hostA"].processes() if process.name() == "sshd")  # slurmd may be there too
    subprocess.run(["nsenter", "-t", str(sshd.pid), "-m", *size.split(), str(bed.own / "tmp")], check=True)
    try:
        done = start(orch, bed, "hostA", "--home", str(bed.own / "runs"), "--quiet").wait(check=125)
    finally:
        subprocess.run(["nsenter", "-t", str(sshd.pid), "-m", "umount", "-l", str(bed.own / "tmp")], check=True)
        shutil.rmtree(bed.own / "runs", ignore_errors=True)
    assert re.search(r"no space left for the tasks' output in \S+ on hostA; make room, or set TMPDIR in setup:", done.err)


def test_stacks_come_from_every_host(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    write_script(tmp_path, "ready()\ndef somewhere():\n    sleep()\nsomewhere()")
    running = start(orch, bed, "hostA,hostB")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    shown = orch("stacks", check=0)
    assert "worker-0..1: in time.sleep (script.py" in shown.out
    orch("down", check=0)
    running.wait(check=143)


def test_a_host_that_is_lost_before_the_start_is_named(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    write_script(tmp_path, "sleep()")
    bed["hostB"].filter_ports(21000, 21009)  # the check of the ports takes its time
    running = start(orch, bed, "hostA,hostB", "--set", "ports=21000-21009", "--set", "backend.lost_after_s=2")
    recorded = wait_until(lambda: next(tmp_path.glob(".orch/runs/*/events.jsonl"), None), "run")
    wait_until(lambda: b'"host":"hostB"' in recorded.read_bytes().replace(b": ", b":"), "agent on hostB")
    bed["hostB"].stop_sshd()
    bed["hostB"].end_sessions()
    done = running.wait(check=125)
    assert "host hostB cannot be " in done.err


@pytest.fixture
def start_apart(orch: Orch, bed: Bed, tmp_path: Path) -> Callable[[int], Running]:
    """``start_apart(3600)``: two tasks, on hostA, and on hostB, whose clock is so many seconds ahead, from the beginning."""
    wrong = bed["hostB"].files / "home/wrong"

    def start(ahead_s: int) -> Running:
        (tmp_path / "clock").mkdir()
        clock = Clock(tmp_path / "clock", ahead_s)
        clock.jump.touch()
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in clock.env.items())
        wrong.write_text(f'#!/bin/sh\nexec env {settings} {shlex.quote(str(clock.python))} "$@"\n')
        wrong.chmod(0o755)
        hosts = {"hostA": None, "hostB": {"python": "~/wrong"}}
        options = ("--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
        return orch.start("up", "script.py", *options)

    return start


def test_a_host_whose_clock_is_wrong_is_not_blamed_for_it(start_apart: Callable[..., Any], tmp_path: Path, run: LiveRun) -> None:
    """hostB is an hour ahead and fails second: the first failure is still that of hostA, and the times are the controller's."""
    write_script(
        tmp_path,
        """
        assert TASK == "worker-0" or time.time() - os.stat(".").st_mtime > 3000, "its clock is right"
        ready()
        wait_for("worker-0.ready", "worker-1.ready")
        if TASK == "worker-1":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            sleep()
        raise KeyError("first")
        """,
    )
    done = start_apart(3600).wait(check=1)
    assert "first failure: worker-0 on hostA" in done.err
    assert abs(run.event("task_started", task="worker-1")["at"] - run.event("task_started", task="worker-0")["at"]) < 60


def test_of_two_exceptions_the_first_is_known_by_one_clock(start_apart: Callable[..., Any], tmp_path: Path) -> None:
    """hostB is an hour behind. Its exception comes second, and its exit is heard of first."""
    write_script(
        tmp_path,
        """
        import atexit
        if TASK == "worker-0":
            atexit.register(lambda: (tell("raised"), wait_for("worker-1.ended"), time.sleep(1)))
            raise KeyError("first")
        wait_for("raised")
        time.sleep(1)  # two clocks are compared by what is said over the link, which is as exact as the link is quick
        atexit.register(tell, "worker-1.ended")
        raise KeyError("second")
        """,
    )
    done = start_apart(-3600).wait(check=1)
    assert "first failure: worker-0 on hostA" in done.err
    assert "KeyError: 'first'" in done.err
