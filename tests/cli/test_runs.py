"""Runs that go on by themselves, seen and ended from other processes: `up -d`, `ps`, `logs`, `wait`, `down`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import time as datetime_time
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator import cli
from orchestrator.cli.commands import down_command
from orchestrator.errors import OrchError, UsageError
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.settings import ClusterSpec, HostSpec, SshSettings, TaskSpec
from orchestrator.record import run_list
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_lock import RunLock
from orchestrator.record.run_store import create_run
from tests.conftest import Orch
from tests.live import PATIENCE_S, LiveRun, held_run, is_alive, plan_for, wait_for_file, wait_until, wait_until_gone
from worker.protocol.messages import Program
from worker.protocol.task_id import TASK_TYPES

Script = Callable[..., Path]

WAITING = """
import os, pathlib, time
print("up", os.environ["ORCH_TASK"], flush=True)
pathlib.Path(os.environ["ORCH_TASK"] + ".up").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("end", flush=True)
"""
TASK_KEYS = {"task", "host", "state", "pid", "started_at", "up_at", "ended_at", "code", "waiting", "report", "failure"}
RUN_KEYS = {"run", "directory", "state", "phase", "attempt", "waiting", "controller_pid", "result", "problem"} | {
    *("started_at", "took_s", "counts", "arguments", "reports", "progress", "values", "goodput")
}
RESULT_KEYS = {"run", "outcome", "exit_code", "attempt", "started_at", "ended_at", "cause", "past", "gave_up", "saved", "remains"} | {
    *("durations", "warning", "input", "reports", "remarks")
}


@pytest.fixture(autouse=True)
def waiting(script: Script) -> Path:
    return script(WAITING, "waiting.py")


def detach(orch: Orch, *words: str) -> str:
    done = orch("up", "-d", *words, check=0)
    assert re.fullmatch(r"[\w.-]+\n", done.out), done
    return done.out.strip()


def ps(orch: Orch, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(orch("ps", "--json", *words, check=0).out)
    return found


# --- detached -----------------------------------------------------------------------------------


def test_a_detached_run_goes_on_and_is_followed_and_waited_for_from_elsewhere(orch: Orch, tmp_path: Path) -> None:
    run = detach(orch, "waiting.py", "-n", "2")
    shown = ps(orch)
    assert (shown["run"], shown["state"], shown["result"]) == (run, "running", None)
    assert {task["state"] for task in shown["tasks"]} <= {"started", "up"}, "it returns once the tasks are started"
    follower, waiter = orch.start("logs", "-f", run), orch.start("wait", run)
    follower.wait_for("up worker-1")
    assert waiter.alive
    (tmp_path / "go").touch()
    assert "succeeded" in waiter.wait(check=0).err
    assert sorted(follower.wait(check=0).out.splitlines()) == sorted(
        f"worker-{index} | {text}" for index in (0, 1) for text in (f"up worker-{index}", "end")
    )
    assert ps(orch)["result"]["outcome"] == "succeeded"
    assert "Traceback" not in (tmp_path / ".orch" / "latest" / "controller.log").read_text()


COUNTING = """
import os, pathlib, time, worker
first = 400 if os.environ["ORCH_ATTEMPT"] == "2" else 0
for step in range(first, 1000):
    worker.report(step=step, of=1000)
    time.sleep(0.02)
    if pathlib.Path("go").exists():
        os._exit(0 if first else 3)
"""


def test_a_run_says_how_far_it_is_and_how_long_it_takes_also_after_a_restart(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(COUNTING, "counting.py")
    run = detach(orch, "counting.py", "--max-restarts", "1", "--strategy", "none")
    for attempt, least in ((1, 0), (2, 40)):
        words = wait_until(lambda: re.search(r", (\d+) %, (\d+) s left", orch("ps", check=0).out), "the time left", 90)
        done = ps(orch)["progress"]
        assert int(words[1]) >= least
        assert int(words[2]) == pytest.approx((1.0 - done["fraction"]) * 1000 * done["step_s"], abs=10), words[0]
        assert re.search(r"running, \d+ %", orch("ps", "--all", check=0).out)
        assert re.search(r"running, \d+ %, \d+ s left", orch("top", "--once", check=0).out)
        orch("report", "-o", "page.html", check=0)
        assert re.search(r"\d+ %, \d+ s left", (tmp_path / "page.html").read_text())
        (tmp_path / "go").touch()
        if attempt == 1:
            wait_until(lambda: ps(orch)["attempt"] == 2, "the second attempt", 90)
            (tmp_path / "go").unlink()
            assert (ps(orch)["progress"] or {"fraction": 0.4})["fraction"] >= 0.4
    orch("wait", run, check=0)
    assert ps(orch, run)["progress"] is None


def test_a_detached_run_outlives_its_terminal(orch: Orch, tmp_path: Path) -> None:
    terminal = subprocess.Popen(
        ["sh", "-c", f"'{sys.executable}' -m orchestrator up -d waiting.py; read forever"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert terminal.stdin is not None
    assert terminal.stdout is not None
    run = terminal.stdout.readline().decode().strip()
    os.killpg(terminal.pid, signal.SIGHUP)
    try:
        assert terminal.wait(PATIENCE_S) == -signal.SIGHUP
    finally:
        terminal.kill()
        terminal.wait()
        terminal.stdin.close()
        terminal.stdout.close()
    assert ps(orch, run)["state"] == "running"
    (tmp_path / "go").touch()
    orch("wait", run, check=0)


@pytest.mark.parametrize("words", [(), ("-d",)], ids=["attached", "detached"])
def test_where_no_file_can_be_locked_the_run_says_so_and_is_not_left_behind(orch: Orch, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Some file systems have no locks. None is at hand, so Python's own call answers as theirs would."""
    (tmp_path / "lockless").mkdir()
    (tmp_path / "lockless" / "sitecustomize.py").write_text(
        "import errno, fcntl, os\n\n\ndef flock(*_):\n    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))\n\n\nfcntl.flock = flock\n"
    )
    done = orch("up", *words, "waiting.py", env={"PYTHONPATH": f"{tmp_path / 'lockless'}:{os.environ['PYTHONPATH']}"}, check=125)
    assert "cannot be locked: No locks available; name another directory with --home or ORCH_HOME" in done.err
    assert not list(tmp_path.glob(".orch/runs/*"))


def test_what_a_detached_run_prints_can_be_piped(orch: Orch, tmp_path: Path) -> None:
    done = subprocess.run(  # the pipe ends although the run goes on
        [sys.executable, "-m", "orchestrator", "up", "-d", "--json", "waiting.py"], cwd=tmp_path, capture_output=True, timeout=200
    )
    answer = json.loads(done.stdout)
    assert set(answer) == {"run", "directory"}
    assert Path(answer["directory"]).name == answer["run"]
    assert ps(orch)["state"] == "running"
    orch("down", check=0)


def test_a_detached_run_says_what_an_attached_one_says_and_keeps_it(orch: Orch, script: Script, tmp_path: Path) -> None:
    """Until it has started to whoever waits for that, and from the beginning to the end in its controller.log."""
    script(
        "import pathlib, time\nwhile not pathlib.Path('import').exists():\n    time.sleep(0.01)\nraise ImportError('no luck')\n", "slow.py"
    )
    starting = orch.start("up", "-d", "waiting.py", "-n", "2", "--set", "preload=[slow]")
    said = [
        starting.wait_for(re.compile(r"^orch: run \S+: multi_worker_mirrored, worker-0..1 on \S+\n", re.MULTILINE))[0],
        starting.wait_for(re.compile(r"^orch: waiting for worker-0.*\n", re.MULTILINE))[0],
    ]
    assert starting.alive
    (tmp_path / "import").touch()
    assert starting.wait(check=0).err.endswith(" ends it\n")
    orch("down", check=0)
    log = (tmp_path / ".orch" / "latest" / "controller.log").read_text()
    for text in (
        *said,
        "TensorFlow is imported again, which takes longer: importing slow failed: ImportError: no luck",
        "; stopping worker-0..1 (SIGTERM now",
    ):
        assert text in log
    quiet = orch("up", "-d", "-q", "waiting.py", check=0)
    assert quiet.err == f"orch: started; orch logs -f {quiet.out.strip()} follows it, orch down {quiet.out.strip()} ends it\n"
    orch("down", check=0)


def test_nobody_can_read_a_secret_in_the_arguments_of_a_detached_controller(orch: Orch) -> None:
    run = detach(orch, "waiting.py", "--env", "TOKEN=s3cret", "--", "--password=s3cret")
    controller = psutil.Process(ps(orch, run)["controller_pid"])
    for process in (controller, *controller.children(recursive=True)):
        if "waiting.py" not in process.cmdline():  # the task itself has its arguments
            assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert os.getsid(controller.pid) == controller.pid
    orch("down", check=0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="NOT TESTED: this system has no /dev/full")
def test_a_detached_run_tells_its_id_though_nothing_else_can_be_said(orch: Orch) -> None:
    with open("/dev/full", "wb") as full:
        started = orch.start("up", "-d", "waiting.py", stderr=full).wait()
    assert started.out == ps(orch)["run"] + "\n"
    orch("down", check=0)


def test_a_detached_run_whose_tasks_cannot_be_started_has_not_started(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/there/is/none\n")
    (tmp_path / "program").chmod(0o755)
    done = orch("up", "-d", "--no-python", "./program", "-n", "2", check=125)
    assert done.out == ""
    assert re.search(r"worker-[01] could not be started: ", done.err), done.err
    assert done.err.endswith("orch:   exit code 125\n"), done.err
    quiet = orch("up", "-d", "-q", "--no-python", "./program", check=125)
    assert quiet.out == ""
    assert "worker-0 could not be started: " in quiet.err
    assert ps(orch)["result"]["exit_code"] == 125


def test_the_exit_code_of_wait_is_that_of_the_run(orch: Orch, script: Script) -> None:
    script("import sys\nsys.exit(7)\n", "seven.py")
    run = detach(orch, "seven.py")
    done = orch("wait", check=7)
    assert done.err.startswith(f"orch: {run} failed after ")
    cause, report = "exit code 7: worker-0 failed (exit code 7)\n", done.err.splitlines()
    assert {"orch:   first failure: worker-0 on local: exit code 7", "orch:   exit code 7"} <= set(report)
    assert f"orch:   log: .orch/runs/{run}/attempt-1/worker-0/stderr.log" in report
    assert orch("logs", "-f", check=0).err == done.err
    assert re.fullmatch(rf"{run}: failed after .* s, {re.escape(cause)}", orch("wait", "-q", check=7).err)
    assert f"s, {cause.strip()}; orch wait {run} shows the report\nTASK " in orch("ps", check=0).out
    result = json.loads(orch("wait", "--json", check=7).out)
    assert set(result) == RESULT_KEYS
    assert (result["exit_code"], result["cause"]["task"], result["cause"]["code"]) == (7, "worker-0", 7)
    ended = ps(orch)
    assert set(ended) == RUN_KEYS | {"tasks", "absent", "timeline"}
    assert ended["tasks"][0]["code"] == 7


def test_wait_gives_up_after_its_time_and_ctrl_c_ends_only_the_waiting(orch: Orch) -> None:
    detach(orch, "waiting.py")
    assert "still running" in orch("wait", "--timeout", "0.1", check=124).err
    for words in (["wait"], ["logs", "-f"]):
        waiter = orch.start(*words)
        if words[0] == "logs":
            waiter.wait_for("up worker-0")
        else:
            wait_until_blocked(waiter.pid)
        waiter.signal(signal.SIGINT)
        assert waiter.wait(check=130).err.strip() == ""
    assert ps(orch)["state"] == "running"
    orch("down", check=0)


def wait_until_blocked(pid: int) -> None:
    process = psutil.Process(pid)
    while not any(file.path.endswith("/lock") for file in process.open_files()):
        assert process.is_running()


# --- a controller that is gone ------------------------------------------------------------------


def test_a_run_whose_controller_was_killed_is_lost_and_down_clears_it(orch: Orch) -> None:
    run = detach(orch, "waiting.py", "-n", "2")
    wait_until(lambda: "up worker-0" in orch("logs", check=0).out, "output of worker-0")
    before = ps(orch)
    controller = psutil.Process(before["controller_pid"])
    controller.kill()
    wait_until_gone([controller])
    after = ps(orch)
    assert (after["state"], after["controller_pid"], after["result"]) == ("lost", None, None)
    shown = orch("ps", check=0).out
    assert "lost" in shown
    assert "shows the report" not in shown
    assert f"orch down {run}" in shown
    assert "died" in orch("wait", check=125).err
    assert "up worker-0" in orch("logs", "-f", check=0).out
    cleared = json.loads(orch("down", "--json", check=0).out)
    assert cleared["was_running"] is False
    for task in before["tasks"]:
        assert not is_alive(task["pid"])
    assert orch("down", check=0).out == f"{run}: lost (its controller died without a result); it was not running\n"


def test_down_in_a_copy_of_a_run_leaves_the_run_alone(orch: Orch, tmp_path: Path) -> None:
    run = detach(orch, "waiting.py", "-n", "2")
    wait_until(lambda: "up worker-0" in orch("logs", check=0).out, "output of worker-0")
    subprocess.run(["cp", "-a", tmp_path / ".orch", tmp_path / "copy"], check=True)
    said = orch("down", "--home", "copy", check=0).out
    assert f"{run}: lost (its controller died" in said
    assert "is not the directory in which the run began (a copy?): processes that it may have left were not looked for\n" in said
    assert "killed" not in said
    tasks = ps(orch)["tasks"]
    assert all(is_alive(task["pid"]) for task in tasks)
    assert "cancelled" in orch("down", check=0).out


@pytest.mark.parametrize("fate", ["removed", "replaced"])
def test_a_run_whose_lock_is_removed_or_replaced_lives_on(orch: Orch, tmp_path: Path, fate: str) -> None:
    detach(orch, "waiting.py")
    wait_until(lambda: "up worker-0" in orch("logs", check=0).out, "output of worker-0")
    lock = tmp_path / ".orch/latest/lock"
    lock.unlink()
    if fate == "replaced":
        lock.write_text("{}")
    assert ps(orch)["state"] == "running"
    said = orch("down", check=0).out
    assert "cancelled" in said
    assert "killed" not in said


def test_down_says_which_hosts_it_has_not_looked_at(orch: Orch, tmp_path: Path) -> None:
    """Of a run with hosts whose controller has died: as far as we are concerned, hosts that are not there."""
    run = create_run(tmp_path / ".orch", "one")
    spec = ClusterSpec("one", "none", Program("script", "s.py"), (TaskSpec("worker", 2),), "/w")
    spec = replace(spec, backend=SshSettings("ssh", (HostSpec("hostA"), HostSpec("localhost")), lost_after_s=20))
    hosts = ["hostA", "localhost"]
    run.write_plan(plan.make("one", spec, plan.place(spec, dict.fromkeys(hosts)), [HostFacts(name, name, 2) for name in hosts]))
    run.lock.acquire()
    run.lock.sign()
    run.lock.release()
    assert json.loads(orch("down", "--json", check=0).out)["unseen"] == ["hostA"]
    said = orch("down", check=0).out
    assert "hostA: not looked at; an agent ends its tasks and itself once its connection closes, or after 20 s without a word\n" in said
    (command,) = re.findall(r"to make sure: ssh hostA (grep .*) \(names", said)
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, "ORCH_RUN_ID": "one"}) as left:
        try:
            # Popen returns before the kernel shows the environment of the new program.
            wait_until(lambda: b"ORCH_RUN_ID=one" in Path(f"/proc/{left.pid}/environ").read_bytes(), "environment")
            # As the shell there would take it.
            looked = subprocess.run(["sh", "-c", command.replace("'", "")], capture_output=True, text=True, check=False)
            assert f"/proc/{left.pid}/environ" in looked.stdout.split()
        finally:
            left.kill()


def test_a_run_that_is_being_made_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody else may look before its controller has begun."""
    seen: list[tuple[str, int | None]] = []

    def execute(argv: list[str], **_: object) -> None:
        run = RunDir(Path(argv[2]))
        seen.append((run_list.state(run), run.lock.controller_pid()))
        raise OSError("not started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", execute)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(OrchError, match="cannot be started: not started"):
            cli.orch.main(["up", "-d", "waiting.py"], standalone_mode=False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert seen == [("running", None)], "it is alive, and nobody can get a signal by mistake"
    assert not list(tmp_path.glob(".orch/runs/*"))


def test_down_is_content_with_a_run_that_is_over_and_not_with_none(orch: Orch, tmp_path: Path) -> None:
    """As docs/exit-codes.md says."""
    fix = "cd to the directory of the run, or name it: --home DIR; orch up starts one"
    assert orch("down", check=2).err == f"error: there is no run in {tmp_path / '.orch'}\n       fix: {fix}\n"
    (tmp_path / "go").touch()
    orch("up", "waiting.py", check=0)
    assert orch("down", check=0).out.endswith("; it was not running\n")
    assert "the run 'other' does not exist" in orch("down", "other", check=2).err


def test_down_says_who_is_late_and_waits_on(
    orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = detach(orch, "waiting.py", "--set", "timeouts.grace_s=0")
    pid = ps(orch)["controller_pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "stop")
    wait = RunLock.wait

    def wake_and_wait(self: RunLock) -> None:
        os.kill(pid, signal.SIGCONT)
        wait(self)

    monkeypatch.setattr(RunLock, "wait", wake_and_wait)
    monkeypatch.setattr(down_command, "STUCK_S", 0.1)
    cli.orch.main(["down", run, "--home", str(tmp_path / ".orch")], standalone_mode=False)
    shown = capsys.readouterr()
    assert f"kill -9 of its controller (process {pid} on {socket.gethostname()}) in any case" in shown.err
    assert "cancelled" in shown.out


def test_a_run_that_is_ending_is_not_said_to_start_again(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('does not listen', flush=True)\ntime.sleep(600)\n",
        "deaf.py",
    )
    running = orch.start("up", "deaf.py", "--set", "timeouts.grace_s=500")
    running.wait_for("does not listen")
    assert json.loads(orch("restart", "--json", check=0).out)["after_attempt"] == 1
    LiveRun(tmp_path).event("restart_requested")
    assert "asked to start again after attempt 1" in orch("restart", check=0).err
    running.signal(signal.SIGTERM)
    LiveRun(tmp_path).event("stop_requested")
    done = orch("restart", check=2)
    assert "is ending and cannot start again" in done.err
    orch("down", "--now", check=0)
    running.wait()


def test_a_run_that_ends_just_then_is_not_said_to_start_again(orch: Orch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch"):
        pass
    assert orch("restart", check=2).err == "error: one is not running any more\n       fix: orch up starts a new run\n"
    said = "one is not running any more\n       fix: orch logs RUN, orch ps RUN or orch report RUN"
    assert orch("stacks", check=2).err == f"error: {said}\n"


def test_a_run_whose_plan_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / ".orch"
    ended = create_run(home, "ended")
    ended.write("plan.json", "{")
    plan_for(create_run(home, "good"), 1)
    with held_run(home) as (running, _):
        for damaged in (False, True):
            if damaged:
                running.write("plan.json", "{")
            cli.orch.main(["ps", "--all", "--json", "--home", str(home)], standalone_mode=False)
            shown = {one["run"]: one for one in json.loads(capsys.readouterr().out)}
            assert {name: one["state"] for name, one in shown.items()} == {"ended": "lost", "good": "lost", "one": "running"}
            assert "the plan of ended cannot be read: " in shown["ended"]["problem"]
            assert shown["good"]["problem"] is None
            assert bool(shown["one"]["problem"]) == damaged
            cli.orch.main(["ps", "--all", "--home", str(home)], standalone_mode=False)
            lines = capsys.readouterr().out.splitlines()
            assert [line.split()[0] for line in lines] == ["RUN", "ended", "good", "one"]
            assert ("the plan of one cannot be read: " in lines[3]) == damaged
            assert "running" in lines[3]


def test_the_end_of_a_run_that_cannot_save_says_that_nothing_was_saved(orch: Orch) -> None:
    detach(orch, "waiting.py")
    assert "nothing was saved: only a training with --checkpoint" in orch("down", "--save", check=0).out


def test_a_command_without_a_name_names_the_other_runs_that_go_on(orch: Orch) -> None:
    first, second, third = (detach(orch, "waiting.py", "--name", name) for name in ("one", "two", "three"))
    assert orch("ps", check=0).out.splitlines()[-1] == f"also running: {first}, {second}"
    assert "also" not in orch("ps", second, check=0).out
    several = f"error: 3 runs go on: {third}, {second}, {first}; name one: orch"
    assert orch("down", check=2).err == f"{several} down {third}, or end all: orch down --all\n"
    assert orch("restart", check=2).err == f"{several} restart {third}\n"
    assert orch("down", "three", check=0).out.startswith(f"{third}: cancelled")
    for command in ("restart", "profile"):
        assert orch(command, check=2).err.endswith(f"has ended, and others go on: {first}, {second}; name one: orch {command} {first}\n")
    others = f"orch: note: {third} has ended, and others go on, which can be named here: {first}, {second}\n"
    assert orch("stacks", check=2).err.startswith(others)
    assert orch("logs", check=0).err.startswith(others)
    ended = f"error: the latest run, {third}, has ended, and others go on: {first}, {second}; name one: orch down {first}"
    assert orch("down", check=2).err == f"{ended}, or end all: orch down --all\n"
    assert "leave RUN out" in orch("down", "--all", first, check=2).err
    keyboard, terminal = os.openpty()
    os.write(keyboard, b"n\n")
    words = [sys.executable, "-m", "orchestrator", "down", "--all"]
    asking = subprocess.run(words, cwd=orch.cwd, stdin=terminal, capture_output=True, check=True, text=True)
    os.close(keyboard)
    os.close(terminal)
    assert (asking.stdout, asking.stderr.strip()) == ("no run was ended\n", f"End {first}, {second}? [y/N]:")
    assert [line.split(":")[0] for line in orch("down", "-a", check=0).out.splitlines()] == [first, second]
    assert orch("down", "--all", "--json", check=0).out == "[]\n"
    assert orch("down", "--all", check=0).out == f"no run goes on in {orch.cwd / '.orch'}\n"
    assert orch("down", "one", "two", check=0).out.count("; it was not running\n") == 2
    assert "also" not in orch("ps", check=0).out


# --- what is shown ------------------------------------------------------------------------------


def test_json_has_the_same_keys_at_every_time(orch: Orch, tmp_path: Path) -> None:
    detach(orch, "waiting.py", "-n", "2")
    running = ps(orch)
    line = next(line for line in iter(lambda: orch("ps", check=0).out.splitlines()[0], "") if "starting" not in line)
    assert ("running since" in line, "; its tasks have formed no cluster yet" in line, "(" in line) == (True, True, False), line
    (tmp_path / "go").touch()
    orch("wait", check=0)
    ended = ps(orch)
    for shown in (running, ended):
        assert set(shown) == RUN_KEYS | {"tasks", "absent", "timeline"}
        for task in shown["tasks"]:
            assert set(task) >= TASK_KEYS
    assert set(running["tasks"][0]) == set(ended["tasks"][0])
    assert set(ended["result"]) == RESULT_KEYS
    assert set(json.loads(orch("ps", "-a", "--json", check=0).out)[0]) == RUN_KEYS
    assert set(json.loads(orch("down", "--json", check=0).out)) == RUN_KEYS | {"was_running", "cleared", "unseen"}


def test_runs_stand_side_by_side(orch: Orch, script: Script) -> None:
    """A loop over settings ends in a table."""
    script("import sys, worker\nworker.report(step=3, loss=float(sys.argv[2]))\nsys.exit(int(sys.argv[3]))\n", "sweep.py")
    for rate, code in (("0.5", 0), ("0.25", 0), ("nan", 7)):
        orch("up", "sweep.py", "--strategy", "none", "--set", "preload=[]", "--", "--lr", rate, str(code), check=code)
    table = orch("ps", "--columns", "lr, loss", check=0).out.splitlines()
    assert [line.split()[-2:] for line in table] == [["lr", "loss"], ["0.5", "0.5"], ["0.25", "0.25"], ["nan", "nan"]]
    lines = orch("ps", "--csv", "--sort", "loss", check=0).out.splitlines()
    assert lines[0].startswith("run,state,took_s,")
    assert [run["values"]["loss"] for run in json.loads(orch("ps", "--all", "--json", check=0).out)] == [0.5, 0.25, "nan"]
    assert re.search("no run has a value los; did you mean .*loss", orch("ps", "--columns", "los", check=0).err)
    assert "--columns names no value; write names" in orch("ps", "--columns", ",", check=2).err
    assert "--csv and --json are two forms of one list" in orch("ps", "--csv", "--json", check=2).err
    head, *lines = orch("ps", "--all", check=0).out.splitlines()
    assert head.split() == ["RUN", "STARTED", "TOOK", "STATE", "ARGUMENTS", "LAST", "REPORT", "TASKS"]
    assert [said in line for line, said in zip(lines, ("loss=0.5 step=3", "loss=0.25 step=3", "loss=nan step=3"), strict=True)] == [
        True
    ] * 3
    assert ["failed (7)" in line for line in lines] == [False, False, True]
    assert " --lr 0.25 0 loss=0.25 step=3 worker 1" in " ".join(lines[1].split())
    (took,) = re.findall("failed after (.*), exit code 7", orch("ps", check=0).out)
    assert took in lines[2], "the run took the same time everywhere"
    newest = orch("ps", "--all", "-n", "2", check=0).out.splitlines()[1:]
    assert [line.split() for line in newest] == [line.split() for line in lines[1:]], "an id names its run among all, listed or not"
    last = json.loads(orch("ps", "--all", "-n", "1", "--json", check=0).out)[0]
    assert (last["arguments"], last["counts"], last["state"]) == (["--lr", "nan", "7"], {"worker": 1}, "failed")
    assert last["reports"] == last["result"]["reports"] == {"worker-0": {"step": 3, "loss": "nan"}}
    assert datetime.fromisoformat(last["started_at"]) <= datetime.fromisoformat(last["result"]["ended_at"])
    assert "UP" not in orch("ps", check=0).out


def test_logs_of_some_tasks_some_lines_some_streams(orch: Orch, script: Script) -> None:
    script("import os, sys\nfor i in range(5): print('line', i)\nprint('trouble', file=sys.stderr)\n", "talk.py")
    orch("up", "talk.py", "-n", "2", check=0)
    assert orch("logs", "worker-1", "--stream", "stdout", check=0).out == "".join(f"worker-1 | line {i}\n" for i in range(5))
    everything = orch("logs", "worker", check=0)
    assert everything.out.count("\n") == 12
    assert everything.out.count("trouble") == 2
    assert orch("logs", "worker-0", "--tail", "2", check=0).out == "worker-0 | line 3\nworker-0 | line 4\nworker-0 | trouble\n"
    assert orch("logs", "--grep", "line [34]", "worker-0", check=0).out == "worker-0 | line 3\nworker-0 | line 4\n"
    lines = [json.loads(line) for line in orch("logs", "--json", "--stream", "stderr", check=0).out.splitlines()]
    assert lines == [{"task": f"worker-{i}", "stream": "stderr", "line": "trouble"} for i in (0, 1)]
    assert orch("logs", "--tail", "0", check=0).out == ""


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_a_task_of_any_type_is_a_task_and_no_run(kind: str, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch"):
        for word in (kind, f"{kind}-0"):
            with pytest.raises(UsageError) if kind != "worker" else contextlib.nullcontext() as refused:
                cli.orch.main(["logs", "one", word, "--home", str(tmp_path / ".orch")], standalone_mode=False)
            assert refused is None or f"there is no task {word!r}" in str(refused.value)


def test_logs_since_a_time_go_back_over_the_attempts(orch: Orch, script: Script, tmp_path: Path) -> None:
    text = """
        import os, pathlib, sys, time
        attempt = os.environ["ORCH_ATTEMPT"]
        for word in ("early", "late"):
            print(word, attempt, flush=True)
            while not pathlib.Path(f"{word}.{attempt}").exists():
                time.sleep(0.01)
        sys.exit(attempt == "1")
    """
    script(text, "speaker.py")
    run = orch.start("up", "speaker.py", "-n", "1", "--max-restarts", "1")
    marks = LiveRun(tmp_path).path / "marks"
    moments = []
    for number, word in ((1, "early"), (1, "late"), (2, "early"), (2, "late")):
        key, size = f"worker-0.{number}.stdout", 8 if word == "early" else 15
        mark = re.compile(rf"^(\S+) .*\b{re.escape(key)}={size}\b", re.MULTILINE)
        found = wait_until(lambda mark=mark: mark.search(wait_for_file(marks)), key)
        moments.append(datetime.fromtimestamp(float(found[1])) + timedelta(milliseconds=1))
        (tmp_path / f"{word}.{number}").touch()
    run.wait(check=0)

    def since(moment: str, *words: str) -> list[str]:
        return [line.split("| ")[1] for line in orch("logs", "--since", moment, *words, check=0).out.splitlines()]

    assert since(moments[0].isoformat()) == ["late 1", "early 2", "late 2"]
    assert since(moments[1].isoformat()) == ["early 2", "late 2"]
    assert since(moments[2].isoformat()) == ["late 2"]
    assert since("0s") == []
    assert since("1d") == ["early 1", "late 1", "early 2", "late 2"]
    assert since("1d", "--attempt", "1") == ["early 1", "late 1"]
    assert since("1d", "--tail", "1", "--attempt", "2") == ["late 2"]
    for more in ([], ["--merge"]):
        assert since("1d", "--until", moments[1].isoformat(), *more)[-1] == "late 1"
    assert "--until ends before the newest lines" in orch("logs", "--until", "10m", "--tail", "3", check=2).err
    assert orch("logs", "--attempt", "2", "--no-prefix", check=0).out == "early 2\nlate 2\n"
    assert "--since: 'yesterday' is not a time\n       fix: write 90s, 10m" in orch("logs", "--since", "yesterday", check=2).err
    stamped = orch("logs", "-t", "--attempt", "2", check=0).out.splitlines()
    times = [datetime.combine(moments[2], datetime_time.fromisoformat(line.split()[0])) for line in stamped]
    assert [line.split(" ", 1)[1] for line in stamped] == ["worker-0 | early 2", "worker-0 | late 2"]
    assert [at <= moment < at + timedelta(seconds=2) for at, moment in zip(times, moments[2:], strict=True)] == [True, True]
    objects = [json.loads(line) for line in orch("logs", "-t", "--json", "--attempt", "2", check=0).out.splitlines()]
    assert [datetime.fromisoformat(one["at"]).timestamp() for one in objects] == [at.timestamp() for at in times]
    marks.unlink()
    assert since("1d", "--attempt", "2") == ["early 2", "late 2"]


@pytest.mark.parametrize("preload", ["", "json"], ids=["executed", "forked"])
def test_the_timeline_has_each_tasks_first_line(orch: Orch, script: Callable[..., Path], preload: str) -> None:
    script("import time; time.sleep(1); print('hello')", "train.py")
    orch("up", "train.py", "-n", "2", "--set", f"preload=[{preload}]", check=0)
    timeline = json.loads(orch("ps", "--json", check=0).out)["timeline"]
    for marks in timeline.values():
        assert ("template" in marks) == bool(preload)
        # The start is told by the agent, which may hear of it a moment after the task has begun.
        assert 0 < marks["agent"] <= marks["first line"] <= marks["first output"] - 0.1
        assert marks["fork or exec"] <= marks["first output"]
    shown = orch("ps", "--timeline", check=0).out
    assert "FIRST LINE" in shown
    assert re.search(r"^the slowest phase of the start was '[a-z ]+' of worker-[01]: [0-9.]+ s$", shown, re.MULTILINE)
    durations = json.loads(orch("wait", "--json", check=0).out)["durations"]  # result.json
    assert {name: set(took) for name, took in durations.items()} == {name: set(marks) for name, marks in timeline.items()}
    for name, took in durations.items():
        assert sum(took.values()) == pytest.approx(max(timeline[name].values()), abs=0.01)
    orch("up", "--no-python", "true", "-n", "1", check=0)
    assert "first line" not in json.loads(orch("ps", "--json", check=0).out)["timeline"]["worker-0"]
