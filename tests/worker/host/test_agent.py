"""The agent alone, at the end of its channel: facts, ports, tasks and their ends, whoever goes away first."""

from __future__ import annotations

import os
import platform
import re
import select
import shlex
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live import frozen, is_alive, wait_for_file
from tests.worker.controller_double import AgentProcess
from worker.protocol import messages
from worker.protocol.channel import HEADER, MAGIC, encode
from worker.protocol.messages import Program

# --- facts and ports ---------------------------------------------------------------------------


def test_it_says_what_its_host_has(agent: AgentProcess) -> None:
    facts = agent.hello()
    assert facts.pid == agent.process.pid
    assert facts.cores == len(os.sched_getaffinity(0))
    assert facts.python_version == platform.python_version()
    assert (facts.ports, facts.problems, facts.trouble) == ((), (), None)


def test_it_says_what_cannot_run(agent: AgentProcess, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def f(:\n")
    programs = (
        Program("script", "missing.py"),
        Program("script", "wrong.py"),
        Program("command", "no-such-command"),
        Program("command", "sh"),
    )
    problems = agent.hello(programs=programs).problems
    assert len(problems) == 3
    assert "'missing.py' cannot be read" in problems[0]
    assert "'wrong.py' is not valid Python" in problems[1]
    assert "line 1" in problems[1]
    assert "'no-such-command' is not on PATH" in problems[2]


@pytest.mark.parametrize(("settings", "found"), [({"word": "one of several"}, "2.19.0"), ({"lost_after_s": 100.0}, "2.19.0"), ({}, "")])
def test_it_looks_for_tensorflow_on_a_host_that_is_not_alone_or_not_here(
    agent: AgentProcess, tmp_path: Path, settings: dict[str, Any], found: str
) -> None:
    """The versions of several hosts are compared, this machine's among them; one host alone has nobody to differ from."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").touch()
    (tmp_path / "tensorflow_cpu-2.19.0.dist-info").mkdir()
    assert agent.hello(search_envs=({"PYTHONPATH": "."},), **settings).tensorflow == found


@pytest.mark.parametrize(
    ("program", "limit_s", "said"),
    [
        ("exec sleep 1000", 1.0, "it has not answered for 1 s"),
        ("echo Illegal instruction >&2; kill -ILL $$", 100.0, "nvidia-smi: Illegal instruction"),
        ("exec >&- 2>&-; sleep 1000", 1.0, "it has not answered for 1 s"),
        ("echo Failed to initialize NVML: Driver/library version mismatch; exit 18", 100.0, "Driver/library version mismatch"),
    ],
    ids=["hangs", "crashes", "falls silent", "complains"],
)
def test_a_broken_driver_holds_up_nobody_and_is_said(
    start_agent: Callable[..., AgentProcess], program: str, limit_s: float, said: str
) -> None:
    """Signs of life are answered meanwhile; a host with a broken driver is not taken for one without GPUs."""
    text = f"driver.is_installed = lambda: True; driver.ANSWER_S = {limit_s}; driver.command = lambda: ['sh', '-c', {program!r}]"
    agent = start_agent(patch=text)
    agent.order(messages.Hello("run", cwd="/", lost_after_s=100.0), messages.Ping())
    facts = agent.wait_for(messages.HostReady)
    assert (facts.gpus, facts.trouble) == ((), None)
    note = agent.wait_for(messages.RunNoted)
    assert note.text.startswith("cannot list the GPUs, so the tasks get none: ")
    assert said in note.text
    assert [type(frame) for frame, _ in agent.frames if not isinstance(frame, messages.RunNoted)] == [messages.Pong, messages.HostReady]


def test_an_agent_that_is_let_go_leaves_nothing_of_what_asks_the_driver(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    program = f"cd {shlex.quote(str(tmp_path))}; echo $$ >pid.part; mv pid.part pid; exec sleep 1000"
    agent = start_agent(patch=f"driver.is_installed = lambda: True; driver.command = lambda: ['sh', '-c', {program!r}]")
    agent.order(messages.Hello("run", cwd="/"))
    pid = int(wait_for_file(tmp_path / "pid"))
    agent.order(messages.Bye())
    agent.read_to_end()
    assert agent.wait() == 0
    assert not is_alive(pid)


@pytest.mark.root
@pytest.mark.parametrize("stuck", [[0, 1], [1]], ids=["what asks it", "a child of what asks it"])
def test_a_driver_that_lets_no_sigkill_through_holds_up_nobody(
    start_agent: Callable[..., AgentProcess], tmp_path: Path, stuck: list[int]
) -> None:
    """What asks it is in state D then. No task is thought to have left it behind, and the agent does not wait for it when it ends."""
    program = f"cd {shlex.quote(str(tmp_path))}; sleep 1000 & echo $$ $! >pids.part; mv pids.part pids; wait"
    patch = f"driver.is_installed = lambda: True; driver.ANSWER_S = 2.0; driver.command = lambda: ['sh', '-c', {program!r}]"
    agent = start_agent(patch=patch)
    agent.order(messages.Hello("run", cwd=str(tmp_path), shared_dir=str(tmp_path)))
    pids = [int(word) for word in wait_for_file(tmp_path / "pids").split()]
    with frozen(*(pids[index] for index in stuck)):
        facts = agent.wait_for(messages.HostReady)
        assert (facts.gpus, facts.trouble) == ((), None)
        assert "it has not answered for 2 s" in agent.wait_for(messages.RunNoted).text
        agent.start("exit 0")
        assert agent.wait_for(messages.TaskSwept).left == ""
        agent.order(messages.Bye())
        agent.read_to_end()
        assert agent.wait() == 0


@pytest.mark.root
def test_an_agent_that_is_let_go_does_not_wait_for_what_sigkill_does_not_end(
    start_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    program = f"cd {shlex.quote(str(tmp_path))}; echo $$ >pid.part; mv pid.part pid; exec sleep 1000"
    agent = start_agent(patch=f"driver.is_installed = lambda: True; driver.command = lambda: ['sh', '-c', {program!r}]")
    agent.order(messages.Hello("run", cwd="/"))
    with frozen(int(wait_for_file(tmp_path / "pid"))):
        agent.order(messages.Bye())
        agent.read_to_end()
        assert agent.wait() == 0


def bind(port: int, *, reuse: bool) -> socket.socket:
    sock = socket.socket()
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("0.0.0.0", port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_the_ports_it_names_are_held_for_its_tasks(agent: AgentProcess) -> None:
    ports = agent.hello(ports=3).ports
    assert len(set(ports)) == 3
    for port in ports:
        with pytest.raises(OSError, match="in use"):
            bind(port, reuse=False)
        with bind(port, reuse=True), socket.create_connection(("127.0.0.1", port), timeout=10):
            pass


def test_ports_are_taken_from_the_range_and_around_what_is_taken(start_agent: Callable[[], AgentProcess]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        span = (port, min(port + 30, 65535))
        first = start_agent().hello(ports=2, port_range=span).ports
        second = start_agent().hello(ports=2, port_range=span).ports
        assert len({port, *first, *second}) == 5
        assert all(span[0] <= one <= span[1] for one in (*first, *second))
        facts = start_agent().hello(ports=2, port_range=(port, port))
        assert facts.ports == ()
        assert facts.trouble == (
            f"ports {port}-{port} are used up: 2 needed, 0 free; give a wider range (ports:), or none, and the kernel chooses"
        )


def listen_at(port: int, directory: Path) -> str:
    """A line for a shell in `directory`: come up at this port, as a task does."""
    (directory / "listen.py").write_text(
        f"import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        f"s.bind(('127.0.0.1', {port})); s.listen(); s.accept()[0].recv(1)"
    )
    return f'"{sys.executable}" listen.py; exec sleep 1000'


def test_an_attempt_that_has_ended_does_not_come_up_with_the_next(agent: AgentProcess, tmp_path: Path) -> None:
    (port,) = agent.hello(ports=1).ports
    agent.start("exec sleep 1000", port=port)
    agent.wait_for(messages.TaskWaiting)
    agent.order(messages.StopTasks(("worker-0",), 0.0))
    agent.wait_for(messages.TaskExited)
    agent.start(listen_at(port, tmp_path), attempt=2, port=port)
    assert agent.wait_for(messages.TaskUp).attempt == 2


# --- tasks -------------------------------------------------------------------------------------


def test_a_tasks_life_is_told_in_order(agent: AgentProcess, tmp_path: Path) -> None:
    agent.hello()
    agent.start("echo out; echo err >&2; exit 7")
    agent.wait_for(messages.TaskSwept)
    (exited,) = agent.all(messages.TaskExited)
    assert (exited.task, exited.code, exited.stopped, exited.failure) == ("worker-0", 7, False, None)
    kinds = [type(frame) for frame, _ in agent.frames]
    assert kinds.index(messages.TaskStarted) < kinds.index(messages.TaskExited) < kinds.index(messages.TaskSwept)
    assert (tmp_path / "attempt-1/worker-0/stdout.log").read_bytes() == b"out\n"
    last = {frame.stream: frame.offset for frame in agent.all(messages.Output)}
    assert last == {"stdout": 4, "stderr": 4}


@pytest.mark.parametrize(
    ("pace", "has_trained"),
    [
        ('{"step": 34, "met": 1, "busy": 0}', True),
        ('{"step": 0, "met": 195, "busy": 0}', True),
        ('{"step": 0, "met": 1, "busy": 3}', True),
        ('{"step": 0, "met": 2, "busy": 1}', False),
        ("broken", False),
    ],
)
def test_the_exit_of_a_task_tells_whether_it_has_trained(agent: AgentProcess, pace: str, has_trained: bool) -> None:
    agent.hello()
    agent.start(f"echo '{pace}' > attempt-1/worker-0/pace.json")
    assert agent.wait_for(messages.TaskExited).evidence.has_trained is has_trained


IGNORING = "trap '' TERM; : > ready; while :; do sleep 0.1; done"


def test_a_command_ignores_no_signal_that_its_agent_ignores(agent: AgentProcess) -> None:
    """As if a shell had started it; Python itself ignores SIGPIPE and SIGXFSZ, and the agent what its terminal sends."""
    agent.hello(shared_dir=None)
    agent.start("grep SigIgn /proc/self/status")
    agent.wait_for(messages.TaskSwept)
    ignored = int(agent.output("worker-0").split()[1], 16)
    ours = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP)
    assert [number for number in ours if ignored >> number - 1 & 1] == []


def test_stopping_is_sigterm_and_then_sigkill(agent: AgentProcess, tmp_path: Path) -> None:
    agent.hello()
    agent.start("exec sleep 1000", IGNORING, "exec sleep 1000")
    wait_for_file(tmp_path / "ready")
    agent.order(messages.StopTasks(("worker-0",), 100), messages.StopTasks(("worker-1",), 0.2))
    codes = {name: agent.wait_for(messages.TaskExited, lambda frame, name=name: frame.task == name) for name in ("worker-0", "worker-1")}
    assert {name: (frame.code, frame.stopped) for name, frame in codes.items()} == {"worker-0": (143, True), "worker-1": (137, True)}
    survivor = agent.wait_for(messages.TaskStarted, lambda frame: frame.task == "worker-2").pid
    assert is_alive(survivor)


def test_swept_comes_when_nothing_is_left(agent: AgentProcess, tmp_path: Path) -> None:
    agent.hello()
    agent.start(
        f"({IGNORING}) & echo $! > child\n"
        "setsid sh -c 'echo $$ > detached; exec sleep 1000' &\n"
        "while ! [ -s detached ] || ! [ -e ready ]; do sleep 0.01; done"
    )
    agent.wait_for(messages.TaskSwept)
    assert agent.wait_for(messages.TaskExited).code == 0
    assert not is_alive(int((tmp_path / "child").read_text()))
    assert not is_alive(int((tmp_path / "detached").read_text()))


# --- the ends of the channel -------------------------------------------------------------------


def test_an_agent_hears_signals_that_were_blocked_where_it_was_started(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
    try:
        agent = start_agent(tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    agent.hello()
    agent.start("exit 3")
    assert agent.wait_for(messages.TaskExited).code == 3
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 1


@pytest.mark.parametrize("way", ["end of file", "both ends closed", "garbage", "version", "unknown order", "broken order", "SIGTERM"])
def test_an_agent_without_an_owner_ends_its_tasks_and_itself(agent: AgentProcess, tmp_path: Path, way: str) -> None:
    agent.hello(**{"term_grace_s" if way == "SIGTERM" else "owner_grace_s": 2.0})
    agent.start("trap 'echo tidied up; exit' TERM; : > gentle; while :; do sleep 0.05; done", IGNORING)
    wait_for_file(tmp_path / "ready")
    wait_for_file(tmp_path / "gentle")
    pids = [agent.wait_for(messages.TaskStarted, lambda frame, name=name: frame.task == name).pid for name in ("worker-0", "worker-1")]
    if way == "end of file":
        agent.stdin.close()
    elif way == "both ends closed":
        agent.stdin.close()
        agent.stdout.close()
    elif way == "SIGTERM":
        agent.process.send_signal(signal.SIGTERM)
    else:
        version = encode(messages.Ack(1))
        agent.send(
            {
                "garbage": b"Welcome to this host!\n" * 100,
                "version": version[:4] + bytes([messages.PROTOCOL + 1]) + version[5:],
                "unknown order": HEADER.pack(MAGIC, messages.PROTOCOL, 63, 0, 2, 0) + b"{}\n",
                "broken order": HEADER.pack(MAGIC, messages.PROTOCOL, version[5], 0, 2, 0) + b"{}\n",
            }[way]
        )
    assert agent.wait() == 1
    assert not any(is_alive(pid) for pid in pids)
    assert (tmp_path / "attempt-1/worker-0/stdout.log").read_bytes() == b"tidied up\n"
    told = {
        "garbage": "Welcome",
        "version": f"version {messages.PROTOCOL + 1}",
        "unknown order": "unknown kind 63",
        "broken order": "a broken Ack",
    }
    assert told.get(way, "") in agent.complaints
    assert "Traceback" not in agent.complaints


BROKEN_ORDERS = {
    "NUL in a path": messages.Hello("run", cwd="/\0"),
    "a port that no kernel has": messages.Hello("run", ports=1, port_range=(65_000, 99_999)),
    "a million ports": messages.Hello("run", ports=1_000_000),
}


@pytest.mark.parametrize("order", BROKEN_ORDERS.values(), ids=BROKEN_ORDERS)
def test_an_order_that_cannot_be_meant_is_refused_in_a_line(agent: AgentProcess, order: messages.Hello) -> None:
    agent.order(order)
    assert agent.wait() == 1
    assert re.fullmatch(r"orch agent: .*(a broken Hello: Hello\.|not a packed likeness).*\n", agent.complaints)


def test_a_grace_period_of_months_is_no_more_than_the_kernel_waits_for(agent: AgentProcess, tmp_path: Path) -> None:
    agent.hello()
    agent.start(IGNORING)
    wait_for_file(tmp_path / "ready")
    agent.order(messages.StopTasks(("worker-0",), 3e6), messages.Ping())
    agent.wait_for(messages.Pong)
    agent.order(messages.Ping())
    agent.wait_for(messages.Pong, lambda frame: len(agent.all(messages.Pong)) == 2)


def test_nothing_is_left_when_the_last_task_is_swept_though_the_kernel_takes_its_time(agent: AgentProcess, tmp_path: Path) -> None:
    """It lets go of a process's memory first, and of its ports and its children only then."""
    text = """
        import os, socket, subprocess, time
        much = b"x" * (300 << 20)
        server = socket.create_server(("127.0.0.1", 0))
        child = subprocess.Popen(["sleep", "1000"])
        with open("told.part", "w") as file:
            file.write(f"{server.getsockname()[1]} {child.pid}")
        os.rename("told.part", "told")
        time.sleep(1000)
    """
    (tmp_path / "big.py").write_text(textwrap.dedent(text))
    agent.hello()
    agent.start(f"setsid {sys.executable} -I -S big.py & while [ ! -e told ]; do sleep 0.01; done")
    agent.wait_for(messages.TaskSwept)
    port, child = (int(word) for word in (tmp_path / "told").read_text().split())
    socket.create_server(("127.0.0.1", port)).close()
    assert not is_alive(child)


def test_what_a_task_has_left_is_ended_though_its_main_thread_is_gone(agent: AgentProcess, tmp_path: Path) -> None:
    text = """
        import ctypes, os, platform, socket, threading, time
        server = socket.create_server(("127.0.0.1", 0))
        with open("told.part", "w") as file:
            file.write(f"{server.getsockname()[1]}")
        threading.Thread(target=lambda: (time.sleep(0.1), os.rename("told.part", "told"), time.sleep(1000))).start()
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2), of this thread alone
    """
    (tmp_path / "headless.py").write_text(textwrap.dedent(text))
    agent.hello()
    agent.start(f"setsid {sys.executable} -I -S headless.py & while [ ! -e told ]; do sleep 0.01; done")
    agent.wait_for(messages.TaskSwept)
    socket.create_server(("127.0.0.1", int((tmp_path / "told").read_text()))).close()


def test_an_agent_whose_controller_dies_before_hello_ends(agent: AgentProcess) -> None:
    agent.stdin.close()
    assert agent.wait() == 1


def test_an_agent_that_hears_nothing_for_too_long_ends_its_tasks_and_itself(agent: AgentProcess, tmp_path: Path) -> None:
    """A cut link says nothing; the channel stays open here as it does then."""
    agent.hello(lost_after_s=6.0, owner_grace_s=0.1)
    agent.start("trap '' TERM; echo $$ >pid.part; mv pid.part pid; while :; do sleep 1; done")
    pid = int(wait_for_file(tmp_path / "pid"))
    assert agent.process.wait(200) == 1
    assert not is_alive(pid)
    assert "no message from the controller for 6 s" in agent.complaints


def test_an_agent_that_was_too_busy_to_listen_still_has_its_owner(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """It looks at its programs for longer than it may hear nothing; what it has been sent meanwhile waits to be read."""
    agent = start_agent(patch=f"programs.find_problems = lambda *_: open({str(tmp_path / 'busy')!r}, 'w').close() or time.sleep(7) or []")
    agent.order(messages.Hello("run", cwd="/", lost_after_s=5.0))
    wait_for_file(tmp_path / "busy")
    while not select.select([agent.stdout], [], [], 0.1)[0]:
        agent.order(messages.Ping())
    agent.wait_for(messages.HostReady)
    agent.order(messages.Ping(), messages.Bye())
    agent.read_to_end()
    assert agent.wait() == 0, agent.complaints


def test_signs_of_life_are_answered_and_keep_an_agent_alive(agent: AgentProcess) -> None:
    agent.hello(lost_after_s=2.0)
    for _ in range(12):
        agent.order(messages.Ping())
        time.sleep(0.25)
    assert agent.process.poll() is None
    agent.wait_for(messages.Pong)
    agent.order(messages.Bye())
    agent.read_to_end()
    assert len(agent.all(messages.Pong)) == 12


def test_hosts_try_each_other_and_know_a_stranger(start_agent: Callable[[], AgentProcess]) -> None:
    one, other = start_agent(), start_agent()
    one.hello(ports=1, word="one")
    facts = other.hello(ports=1, word="other")
    assert any(found.address == "127.0.0.1" and found.prefix == 8 for found in facts.addresses)
    own = ("127.0.0.1", "::1") if any(found.address == "::1" for found in facts.addresses) else ("127.0.0.1",)
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))
    targets = (
        messages.Target("right", (facts.ports[0],), "other", (*own, "no-such-name.invalid")),
        messages.Target("stranger", (facts.ports[0],), "somebody", ("127.0.0.1",)),
        messages.Target("deaf", (unused.getsockname()[1],), "x", ("127.0.0.1",)),
    )
    one.order(messages.Try(targets))
    results = {(found.host, found.address): found.refusal for found in one.wait_for(messages.Tried).refused}
    unused.close()
    assert results.pop(("right", "no-such-name.invalid"))
    assert results == {("stranger", "127.0.0.1"): "another machine answers", ("deaf", "127.0.0.1"): "connection refused"}


def test_each_held_port_answers_until_the_tasks_start_and_is_free_after_the_run(start_agent: Callable[[], AgentProcess]) -> None:
    """The kernel would give some connections to the agent, if the agent still listened where a task does."""
    one, other = start_agent(), start_agent()
    one.hello(word="one")
    ports = other.hello(ports=3, word="other").ports
    assert len(ports) == 3
    target = messages.Target("other", ports, "other", ("127.0.0.1",))
    one.order(messages.Try((target,)))
    assert one.wait_for(messages.Tried).refused == ()
    other.start("sleep 1000")
    other.wait_for(messages.TaskStarted)
    one.order(messages.Try((target,)))
    refused = one.wait_for(messages.Tried, lambda tried: bool(tried.refused)).refused
    assert {(found.port, found.refusal) for found in refused} == {(port, "connection refused") for port in ports}
    other.order(messages.Bye())
    other.read_to_end()
    for port in ports:
        with socket.socket() as sock:
            sock.bind(("0.0.0.0", port))  # no connection of a try is left in TIME_WAIT


def test_the_tries_end_with_the_agent(agent: AgentProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent.order(messages.Try((messages.Target("silent", (silent.getsockname()[1],), "word", ("127.0.0.1",)),)))
        peer, _ = silent.accept()
        with peer:
            agent.process.kill()
            peer.settimeout(10)  # half of the time for which a word is waited
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
        agent.read_to_end()


def test_code_that_arrives_broken_is_refused(
    start_agent: Callable[[], AgentProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    agent = start_agent()
    files = (messages.CodeFile("a.py", "0" * 64, 3),)
    agent.order(messages.Code("f" * 64, files))
    wanted = agent.wait_for(messages.CodeWanted)
    assert wanted.digests == ("0" * 64,)
    agent.send(encode(messages.CodePart("0" * 64, last=True), b"abc"))
    assert "did not arrive as it was sent" in (agent.hello().trouble or "")
    assert not list((tmp_path / "cache/orch/files").iterdir())
