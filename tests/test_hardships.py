"""What a fresh reader broke: each of these once ended in silence, or blamed the wrong one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backends import load
from orchestrator.control.starting import start_of
from orchestrator.control.supervisor import Supervisor
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.record.console import Console, Sink
from orchestrator.record.run_store import create_run
from orchestrator.record.text.log_view import LogView
from tests.conftest import Orch
from tests.live import LiveRun
from tests.worker.controller_double import patched_agent
from worker.protocol.messages import Program

Script = Callable[..., Path]
SLEEP = "import time\ntime.sleep(1000)\n"


def test_a_deadline_shows_where_every_task_was_even_those_that_die_at_sigterm(orch: Orch, script: Script) -> None:
    script(SLEEP, "wait.py")
    done = orch("up", "wait.py", "-n", "8", "--timeout", "20", check=124)
    assert "worker-0..7: in time.sleep (wait.py:2)\n" in done.err


def test_stacks_are_shown_while_a_run_goes_on(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(
        """
        import os, time
        def load(): time.sleep(1000)
        def train(): time.sleep(1000)
        print("ready", flush=True)
        load() if os.environ["RANK"] == "2" else train()
        """,
        "wait.py",
    )
    running = orch.start("up", "wait.py", "-n", "3")
    for task in range(3):
        running.wait_for(f"worker-{task} | ready")
    odd = "worker-2: in time.sleep (wait.py:3), the odd one out\n"
    assert orch("stacks", check=0).out == f"worker-0..1: in time.sleep (wait.py:4)\n{odd}"
    stopped = LiveRun(tmp_path).event("task_started", task="worker-1")["pid"]
    os.kill(stopped, signal.SIGSTOP)
    assert "worker-1: is stopped (SIGSTOP)\n" in orch("stacks", check=0).out
    os.kill(stopped, signal.SIGCONT)
    running.signal(signal.SIGTERM)
    running.wait(check=143)
    assert "is not running" in orch("stacks", check=2).err


def test_a_report_that_no_parser_likes_harms_nobody(orch: Orch, script: Script) -> None:
    script(
        """
        import os
        for text in ("[" * 100_000, '{"at": 1' + "0" * 400 + "}", '{"step": 3}'):
            with open(os.path.join(os.environ["ORCH_LOG_DIR"], "reports.jsonl"), "a") as file:
                file.write(text + "\\n")
        """,
        "bomb.py",
    )
    orch("up", "bomb.py", "-n", "2", check=0)


def test_a_detached_run_whose_caller_was_killed_still_listens(orch: Orch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(3)\n")
    script(SLEEP, "wait.py")
    caller = orch.start("up", "wait.py", "-d", "--set", "preload=[slow]", env={"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"})
    plans = tmp_path / ".orch" / "latest" / "plan.json"
    while not plans.exists():
        assert caller.alive
    os.kill(caller.pid, signal.SIGKILL)
    # A plan that is written is shown once its event has come.
    while not (tasks := json.loads(orch("ps", "--json", check=0).out)["tasks"]) or tasks[0]["state"] == "pending":
        pass
    assert "cancelled" in orch("down", check=0).out


def test_a_program_that_opens_no_port_is_not_waited_for(orch: Orch) -> None:
    done = orch("up", "--no-python", "sleep", "-n", "2", "--", "2", check=0)
    assert "waiting for" not in done.err
    assert re.search(r"^orch: 2 tasks have started; orch waits for the ports of a command only with timeouts.start_s$", done.err, re.M)


def test_a_program_that_is_given_a_time_to_open_its_port_is_waited_for(orch: Orch) -> None:
    done = orch("up", "--no-python", "sleep", "-n", "2", "--set", "timeouts.start_s=8", "--", "1000", check=124)
    assert "(timeouts.start_s); waiting for worker-0..1: no port is open yet" in done.err


def test_a_worker_that_is_done_before_the_others_is_not_waited_for(orch: Orch, script: Script) -> None:
    script(
        """
        import json, os, socket, time
        if os.environ["RANK"] == "1":
            port = int(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][1].rpartition(":")[2])
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
                time.sleep(12)
        """,
        "early.py",
    )
    done = orch("up", "early.py", "-n", "2", "--set", "timeouts.start_s=9", check=0)
    assert "waiting for  (" not in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="NOT TESTED: this system has no /dev/full")
def test_a_disk_that_is_full_before_there_is_a_plan_ends_the_run(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "full")
    run._events_fd = os.open("/dev/full", os.O_WRONLY)
    spec = ClusterSpec("full", "none", Program("command", "true"), (TaskSpec("worker", 1),), str(tmp_path), preload=())
    console = Console(run, Sink(), LogView(()), quiet=True)
    try:
        verdict = asyncio.run(Supervisor(start_of(run, load(spec), spec), console).run())
    finally:
        console.finish()
        os.close(run._events_fd)  # a controller keeps it open to its end
    assert verdict.cause is not None
    assert verdict.exit_code == 125
    assert re.search(r"cannot be recorded in .*: No space left on device; make room", verdict.cause.what)


def test_where_no_thread_can_be_started_a_run_is_refused_in_words(orch: Orch, script: Script, tmp_path: Path) -> None:
    """As under ``ulimit -u``, which binds no root."""
    script(SLEEP, "wait.py")
    no_thread = 'def start(self):\n    raise RuntimeError("can\'t start new thread")\n'
    (tmp_path / "sitecustomize.py").write_text(f"import threading\n{no_thread}threading.Thread.start = start\n")
    done = orch("up", "wait.py", env={"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}, check=125)
    assert done.err == "error: orch cannot show the run: can't start new thread\n       fix: raise the limit of processes (ulimit -u)\n"
    assert not list(tmp_path.glob(".orch/runs/*"))


def test_where_no_pair_of_sockets_can_be_made_a_run_is_refused_in_words(orch: Orch, script: Script, tmp_path: Path) -> None:
    """As under a sandbox that refuses socketpair, which asyncio needs."""
    script(SLEEP, "wait.py")
    refuse = "def refuse(*_):\n    raise PermissionError(1, 'Operation not permitted')\n"
    (tmp_path / "sitecustomize.py").write_text(f"import socket\n{refuse}socket.socketpair = refuse\n")
    for words in (("up", "wait.py"), ("doctor",)):
        done = orch(*words, env={"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}, check=125)
        assert (
            "error: orch cannot wait for anything: Operation not permitted\n       fix: raise the limit of open files (ulimit -n), or "
            in done.err
        )
        assert "Traceback" not in done.err
        assert "never awaited" not in done.err


def test_a_limit_that_keeps_a_task_from_starting_is_named(orch: Orch, script: Script) -> None:
    script(SLEEP, "wait.py")
    for limit in (6, 16):  # too few for the run itself, and for a task
        limited = ("/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
        done = orch("up", "wait.py", "-n", "2", "--set", "preload=[]", check=125, by=limited)
        assert re.search(r"Too many open files(;|\n +fix:) raise the limit of open files \(ulimit -n\)", done.err)


def test_too_few_open_files_are_said_in_words(orch: Orch, script: Script, tmp_path: Path) -> None:
    low = tmp_path / "python"
    low.write_text(f'#!/bin/sh\nulimit -n 20\nexec {sys.executable} "$@"\n')
    low.chmod(0o700)
    script(SLEEP, "wait.py")
    said = orch("up", "wait.py", "-n", "30", "--python", str(low), check=125).err
    assert "too many open files for the ports and the output of its tasks: raise the limit (ulimit -n)" in said
    assert "Errno" not in said


def test_more_tasks_than_a_host_has_ports_are_refused(orch: Orch, script: Script) -> None:
    script(SLEEP, "wait.py")
    said = orch("up", "wait.py", "-n", "70000", check=2).err
    assert said == "error: a host has 65,535 ports; 70,000 tasks need one each\n       fix: name more hosts\n"


FULL = """
link, forwarder = (find(f'_orch_worker.host.{name}') for name in ('network.link', 'log_forwarder'))
forwarder.free_bytes = lambda directory: 0
def send(self, message, data=b'', send=link.Link.send):
    if isinstance(message, agent.messages.HostReady):
        self._outgoing += link.encode(message)  # sent together with what comes next, as on a busy machine
    else:
        send(self, message, data)
        self._write()
link.Link.send = send
"""


def test_a_host_whose_disk_is_full_from_the_start_ends_the_run_in_its_words(orch: Orch, script: Script, tmp_path: Path) -> None:
    """Its agent says so once, before there is a plan."""
    full = tmp_path / "python"
    full.write_text(f"#!/bin/sh\nexec {shlex.join(patched_agent(FULL))}\n")
    full.chmod(0o700)
    script(SLEEP, "wait.py")
    said = orch("up", "wait.py", "-n", "2", "--timeout", "20", "--python", str(full), check=125).err
    assert "error: host local: no space left for the tasks' output in " in said
    assert "make room, or name another directory with --home" in said


@pytest.mark.parametrize("words", [(), ("-d",)])
def test_a_users_module_on_pythonpath_may_be_called_worker(orch: Orch, script: Script, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/worker.py").write_text("raise SystemExit('the wrong module')\n")
    env = {"PYTHONPATH": f"{tmp_path / 'modules'}:{os.environ['PYTHONPATH']}"}
    script("import sys\nprint(sys.path[1])\n", "show.py")
    orch("up", "show.py", "--strategy", "none", *words, env=env, check=0)
    orch("wait", env=env, check=0)
    assert str(tmp_path / "modules") in orch("logs", env=env, check=0).out, "a task's path is as without orch"
