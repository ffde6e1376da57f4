"""Runs that somebody ends: Ctrl-C once and twice, signals, `orch down` from another terminal. Real processes, no TensorFlow."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.control.signals import ENDINGS
from orchestrator.record.run_store import create_run
from tests.conftest import IMPATIENT, Orch, Running
from tests.live import LiveRun, frozen, is_alive, wait_for_file, wait_until, wait_until_gone, wait_until_ready, write_script
from tests.worker.controller_double import patched_agent

TIDY = """
def tidy(*_):
    print("tidied up", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, tidy)
ready()
sleep()
"""
STUBBORN = "ignore(); ready(); sleep()"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_lets_the_tasks_tidy_up(orch: Orch, tmp_path: Path, run: LiveRun, number: signal.Signals, code: int) -> None:
    write_script(tmp_path, TIDY)
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=30")
    tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
    running.signal(number)
    done = running.wait(check=code)
    assert not any(is_alive(task) for task in tasks.values())
    assert sorted(done.out.splitlines()) == ["worker-0 | tidied up", "worker-1 | tidied up"]
    assert (run.result()["outcome"], run.result()["exit_code"]) == ("cancelled", code)
    assert "first failure" not in done.err
    assert done.err.splitlines()[-1] == f"orch:   exit code {code}"


@pytest.mark.parametrize("line", ["", "nonsense"])
def test_ctrl_c_is_heard_while_another_process_writes_into_the_pipe_without_end(
    orch: Orch, tmp_path: Path, run: LiveRun, line: str
) -> None:
    write_script(tmp_path, "ready(); sleep()")
    running = orch.start("up", "script.py", "-n", "2")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    with subprocess.Popen(["sh", "-c", 'exec yes "$1" > "$2"', "sh", line, str(run.path / "control")], stderr=subprocess.DEVNULL) as writer:
        try:
            wait_until(lambda: psutil.Process(writer.pid).io_counters().write_chars > 500_000, "writing")
            running.signal(signal.SIGINT)
            running.wait(check=130)
        finally:
            writer.kill()
    assert (run.path / "events.jsonl").stat().st_size < 50_000, "each line that is no request would be recorded"


def test_ctrl_z_stops_what_is_shown_and_says_that_the_tasks_go_on(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "ready(); wait_for('go')")
    running = orch.start("up", "script.py", "-n", "1")
    wait_until_ready(tmp_path, "worker-0")
    running.signal(signal.SIGTSTP)
    wait_until(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED, "stopped orch")
    (tmp_path / "go").touch()
    running.signal(signal.SIGCONT)
    assert "orch: note: stopped by Ctrl-Z: tasks here go on" in running.wait(check=0).err


def test_under_nohup_a_run_outlives_its_terminal(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "ready(); wait_for('go')")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = orch.start("up", "script.py", "-n", "1")
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until_ready(tmp_path, "worker-0")
    running.signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    running.wait(check=0)


@pytest.mark.root
def test_the_report_names_a_task_that_sigkill_does_not_end_and_why(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, STUBBORN)
    running = orch.start("up", "script.py", "-n", "1", "--set", "timeouts.grace_s=0.1", env={"ORCH_TIME_SCALE": "0.05"})  # 3 s for 60
    (task,) = wait_until_ready(tmp_path, "worker-0").values()
    with frozen(task.pid):
        running.signal(signal.SIGINT)
        done = running.wait(check=130)
    assert done.err.count(f"pid {task.pid}") == 1
    assert f"  still there: worker-0 on local: pid {task.pid}, waiting in the kernel in state D" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_kills_at_once(orch: Orch, tmp_path: Path, run: LiveRun, number: signal.Signals) -> None:
    write_script(tmp_path, STUBBORN)
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=1000")
    tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
    running.signal(signal.SIGINT)
    running.wait_for("SIGKILL after 1000 s")
    assert all(is_alive(task) for task in tasks.values())
    running.signal(number)
    done = running.wait(check=130)
    assert "asked again: killing the remaining tasks" in done.err
    assert {event["code"] for event in run.events() if event["event"] == "task_exited"} == {137}


def test_ctrl_c_while_a_failure_is_being_cleared_away_keeps_the_failure(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, f"if TASK == 'worker-0':\n    wait_for('worker-1.ready')\n    sys.exit(7)\n{STUBBORN}")
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=1000")
    running.wait_for("SIGKILL after 1000 s")
    running.signal(signal.SIGINT)
    running.wait(check=7)
    assert run.cause()["task"] == "worker-0"


# --- once it is over ---------------------------------------------------------------------------

SLOW_SSH = """#!{python}
import os, subprocess, sys, threading, time

def pump(source, target, pause_s):
    while data := source.read1(64 * 1024):
        target.write(data)
        target.flush()
        time.sleep(pause_s if len(data) > 8 * 1024 else 0)
    target.close()

os.environ["XDG_CACHE_HOME"] = {cache!r}
remote = subprocess.Popen(["sh", "-c", sys.argv[-1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
threading.Thread(target=pump, args=(sys.stdin.buffer, remote.stdin, 0), daemon=True).start()
pump(remote.stdout, sys.stdout.buffer, 0.2)
"""
"""In the place of ssh: the host is this machine, and what comes back from it comes slowly."""


def start_far_away(orch: Orch, directory: Path, *options: str) -> Running:
    """A task on a host whose link is slow; it has written much more than is there when it has ended."""
    ssh = directory / "slow-ssh"
    ssh.write_text(SLOW_SSH.format(python=sys.executable, cache=str(directory / "cache")))
    ssh.chmod(0o700)
    write_script(directory, "os.write(1, (b'x' * 63 + b'\\n') * 1024 * 1024)")
    hosts = f'{{"far": {{"address": "127.0.0.1", "slots": 1, "python": "{sys.executable}"}}}}'
    settings = ("--set", f"backend.hosts={hosts}", "--set", f'backend.ssh=["{ssh}"]', "--set", "backend.code=unchecked")
    return orch.start("up", "script.py", *settings, "--quiet", *options)


def test_once_it_is_over_a_signal_says_what_is_fetched_and_the_next_leaves_it(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """Sixty-four megabytes over a link that would take minutes for them."""
    running = start_far_away(orch, tmp_path)
    run.event("task_swept", task="worker-0")
    running.signal(signal.SIGINT)
    fetching = "the run is over; still fetching the output of far; Ctrl-C or orch down again leaves the rest there"
    run.event("run_noted", text=fetching)
    assert "is ending and cannot start again" in orch("restart", check=2).err
    running.signal(signal.SIGINT)
    done = running.wait(check=0)
    assert run.result()["outcome"] == "succeeded"
    assert "interrupted" not in done.err
    noted = [event["text"] for event in run.events() if event["event"] == "run_noted"]
    assert noted[noted.index(fetching) + 1 :] == ["far: the remaining output of the tasks was not fetched"]
    assert len(run.log("worker-0")) < 64 * 1024 * 1024


def test_down_now_leaves_what_is_still_fetched(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    running = start_far_away(orch, tmp_path, "--json")
    run.event("task_swept", task="worker-0")
    orch("down", "--now", check=0)
    running.wait(check=0)
    assert len(run.log("worker-0")) < 64 * 1024 * 1024


# --- before there is anything to stop ----------------------------------------------------------

SLOW_PYTHON = """#!/bin/sh
sleep 1000 &
echo $! > .pid && mv .pid python.started
wait
"""


def python_of(directory: Path, text: str) -> str:
    """A program in the place of the interpreter."""
    path = directory / "python"
    path.write_text(text)
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_agent_is_starting_ends_it(orch: Orch, tmp_path: Path, number: signal.Signals, code: int) -> None:
    slow = python_of(tmp_path, SLOW_PYTHON)
    write_script(tmp_path, "")
    running = orch.start("up", "script.py", "-n", "2", "--python", slow)
    child = psutil.Process(int(wait_for_file(tmp_path / "python.started")))
    running.signal(number)
    done = running.wait(check=code)
    wait_until_gone([child])  # killed, and not a child of orch's that it could wait for
    assert "Traceback" not in done.err
    assert f"exit code {code}" in done.err


def test_the_limit_of_the_run_holds_while_its_agent_is_starting(orch: Orch, tmp_path: Path) -> None:
    slow = python_of(tmp_path, SLOW_PYTHON)
    write_script(tmp_path, "")
    done = orch("up", "script.py", "-n", "2", "--python", slow, "--timeout", "2", check=124)
    assert "the run took longer than 2 s (--timeout); no task had been started" in done.err
    (result,) = tmp_path.glob(".orch/runs/*/result.json")
    assert json.loads(result.read_bytes())["outcome"] == "timed_out"


DEAF = """
def obey(self, order, data, obey=agent.Agent._on_order):
    if isinstance(order, agent.messages.StopTasks):
        time.sleep(1000)
    return obey(self, order, data)
agent.Agent._on_order = obey
"""


@pytest.mark.parametrize(("options", "signals", "code"), [(("--timeout", "10"), 0, 124), (("--timeout", "1000"), 2, 130)])
def test_an_agent_that_obeys_nothing_does_not_outlast_the_end_of_a_run(
    orch: Orch, tmp_path: Path, run: LiveRun, options: tuple[str, ...], signals: int, code: int
) -> None:
    """A deadline of the user's, and an end that was asked for twice, wait for no agent that gives no sign of life."""
    deaf = python_of(tmp_path, f"#!/bin/sh\nexec {shlex.join(patched_agent(DEAF))}\n")
    write_script(tmp_path, "ready(); sleep()")
    running = orch.start("up", "script.py", "--python", deaf, *options)
    tasks = wait_until_ready(tmp_path, "worker-0")
    for _ in range(signals):
        running.signal(signal.SIGINT)
        wait_until(lambda: "stopping" in running.err or None, "first Ctrl-C")
    done = running.wait(check=code)
    assert run.event("host_lost")["reason"].startswith("no message from it for 5 s"), done
    wait_until_gone(tasks.values())


_LINK = "link = importlib.import_module('_orch_worker.host.network.link')"
SILENT = """
def send(self, message, data=b'', send=link.Link.send):
    if not isinstance(message, agent.messages.TaskSwept):
        send(self, message, data)
link.Link.send = send
"""


@pytest.mark.parametrize(("program", "signals", "code"), [("ready(); sleep()", 1, 130), ("ready(); sys.exit(7)", 0, 7)])
def test_an_agent_that_never_tells_of_the_end_of_its_tasks_does_not_hold_up_the_run(
    orch: Orch, tmp_path: Path, run: LiveRun, program: str, signals: int, code: int
) -> None:
    """It answers every question for a sign of life: the controller has a deadline of its own."""
    silent = python_of(tmp_path, f"#!/bin/sh\nexec {shlex.join(patched_agent(_LINK + SILENT))}\n")
    write_script(tmp_path, program)
    running = orch.start("up", "script.py", "--python", silent, "--set", "timeouts.grace_s=1", env=IMPATIENT)
    tasks = wait_until_ready(tmp_path, "worker-0")
    for _ in range(signals):
        running.signal(signal.SIGINT)
    done = running.wait(check=code)
    assert run.event("host_lost")["reason"] == "its agent has not told of the end of its tasks 9 s after their SIGKILL was due", done
    wait_until_gone(tasks.values())


LYING = """
link, channel = (importlib.import_module(f'_orch_worker.{name}') for name in ('host.network.link', 'protocol.channel'))
def encode(message, data=b'', real=link.encode, **more):
    whole = real(message, data)
    text = whole[16:len(whole) - len(data) - 1].replace(b'"code":7', b'"code":%s')
    return channel.HEADER.pack(b'orch', agent.messages.PROTOCOL, whole[5], 0, len(text), len(data)) + text + data + channel.END
link.encode = encode
"""


@pytest.mark.parametrize("code", ["256", "1" + "0" * 300])
def test_an_agent_that_tells_of_an_impossible_exit_code_fails_the_run(orch: Orch, tmp_path: Path, code: str) -> None:
    """The kernel would make 0 of 256: a failed run must not end with that."""
    lying = python_of(tmp_path, f"#!/bin/sh\nexec {shlex.join(patched_agent(LYING.replace('%s', code)))}\n")
    write_script(tmp_path, "sys.exit(7)")
    done = orch("up", "script.py", "--python", lying, check=125)
    line = done.err.splitlines()[1]
    assert line.startswith("orch: lost host local: a broken TaskExited: TaskExited.code: expected a value from "), done
    assert len(line) < 400
    assert "Traceback" not in done.err


BOASTING = """
def send(self, message, data=b'', send=link.Link.send):
    if isinstance(message, agent.messages.Output):
        message, data = agent.messages.Output(message.task, %s, message.stream, %s), b'x'
    send(self, message, data)
link.Link.send = send
"""


@pytest.mark.parametrize(("attempt", "offset"), [(1, 2**40), (77, 0)])
def test_an_agent_that_sends_output_which_cannot_be_fails_the_run(
    orch: Orch, tmp_path: Path, run: LiveRun, attempt: int, offset: int
) -> None:
    """The run directory would get a file of a terabyte, which nobody can look through, or a directory of an attempt that never was."""
    boasting = python_of(tmp_path, f"#!/bin/sh\nexec {shlex.join(patched_agent(_LINK + BOASTING % (attempt, offset)))}\n")
    write_script(tmp_path, "print('hello', flush=True); sleep()")
    done = orch("up", "script.py", "--python", boasting, "--set", "timeouts.grace_s=1", check=125)
    said = r"^orch: lost host local: (it sends stdout of 'worker-0' from byte|a frame for task 'worker-0' in attempt 77)"
    assert re.search(said, done.err, re.MULTILINE)
    orch("logs", check=0)
    assert sum(path.stat().st_size for path in run.path.rglob("*.log")) < 100_000
    assert not (run.path / "attempt-77").exists()


INTERRUPTED_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "MODULE" and "NUMBER" in os.environ:
            os.kill(os.getpid(), int(os.environ.pop("NUMBER")))
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    ("words", "module", "number", "code"),
    [
        (("-m", "orchestrator", "ps", "--all"), "click", 2, 130),
        (("-m", "orchestrator", "up", "script.py"), "click", 2, 130),
        (("-c", "from orchestrator.__main__ import main; main()", "up", "script.py"), "click", 2, 130),
        (("-m", "orchestrator", "up", "script.py"), "orchestrator.cli.commands.up_command", 2, 130),
        (("-m", "orchestrator.controller", "RUN"), "asyncio", 2, 130),
        (("-m", "orchestrator.controller", "RUN"), "asyncio", 15, 143),
    ],
    ids=str,
)
def test_ctrl_c_during_orchs_own_imports_shows_no_traceback(
    tmp_path: Path, words: tuple[str, ...], module: str, number: int, code: int
) -> None:
    write_script(tmp_path, "sleep()")
    run = create_run(tmp_path / ".orch", "one")
    run.write("spec.yaml", f"script: script.py\nworkdir: {tmp_path}\npreload: []\nstrategy: none\n")
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT.replace("MODULE", module))
    words = tuple(str(run.path) if word == "RUN" else word for word in words)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}", "NUMBER": str(number)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("moment", range(0, 8, 2))
def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(orch: Orch, tmp_path: Path, moment: int) -> None:
    write_script(tmp_path, "sleep()")
    running = orch.start("up", "script.py", "-n", "3")
    wait_until(lambda: list(tmp_path.glob(".orch/runs/*/lock")), "run")
    time.sleep(moment * 0.02)  # not to wait for something: to hit the start in different places
    running.signal(signal.SIGINT)
    done = running.wait(check=130)
    assert "Traceback" not in done.err


# --- from another terminal ---------------------------------------------------------------------


def test_down_ends_a_detached_run(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, TIDY)
    started = orch("up", "-d", "script.py", "-n", "2", check=0)
    assert started.out.strip() == run.path.name
    tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
    controller = run.controller()
    orch("down", started.out.strip(), check=0)
    assert not any(is_alive(task) for task in tasks.values())
    assert run.result()["outcome"] == "cancelled"
    assert run.log("worker-0") == b"tidied up\n"
    orch("wait", check=143)
    wait_until(lambda: not is_alive(controller), "end of the controller")


def test_down_now_is_at_once_though_the_controller_is_slow_to_hear(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, STUBBORN)
    orch("up", "-d", "script.py", "-n", "2", "--set", "timeouts.grace_s=1000", check=0)
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    controller = run.controller()
    controller.suspend()
    down = orch.start("down", "--now")
    wait_until(lambda: is_readable(run.path / "control"), "request")
    controller.resume()
    down.wait(check=0)
    orch("wait", check=143)


def is_readable(pipe: Path) -> bool:
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return bool(select.select([file], [], [], 0)[0])


def test_no_thread_takes_what_the_main_one_holds_back(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """A signal that comes while the verdict is being written would end the controller without one."""
    write_script(tmp_path, STUBBORN)
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    controller = run.controller()
    threads = [path for path in Path(f"/proc/{controller.pid}/task").iterdir() if int(path.name) != controller.pid]
    assert threads, "the one that writes to the console, at least"
    for thread in threads:
        blocked = int(re.findall(r"^SigBlk:\s*(\w+)", (thread / "status").read_text(), re.MULTILINE)[0], 16)
        assert [number.name for number in ENDINGS if not blocked >> (number - 1) & 1] == [], (thread / "comm").read_text()
    running.signal(signal.SIGTERM)
    running.wait(check=143)
