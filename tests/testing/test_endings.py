"""What becomes of clusters when the process of the tests ends, and of several such processes at once; and of a debugger at its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.testing import session
from tests.live import PATIENCE_S

pytestmark = pytest.mark.tensorflow

DEADLINE_S = 120.0


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory for the directories of sessions. Its path is short, for a session does not use a long one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


ALL_REDUCE = """
import os, sys, time
from orchestrator.testing import barrier, cluster

def step(strategy):
    import tensorflow as tf
    return float(strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))))
"""

HANGS = f"""{ALL_REDUCE}
with cluster(workers=2) as c, cluster(workers=1, reuse=True) as other:
    c.run(step)
    print("there", flush=True)
    c.run(lambda: time.sleep(1000))
"""


def left_of(session: Path) -> list[str]:
    """Processes that have to do with a directory of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if str(session) in " ".join([*command, *process.environ().values()]) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {command}")
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def assert_nothing_is_left_of(session: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while left := left_of(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_nothing_survives_when_the_process_of_the_tests_is_killed(script: Callable[..., Path], place: Path) -> None:
    env = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen([sys.executable, script(HANGS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith(b"there") for line in process.stdout)
            (session,) = place.glob("orch-testing-*")
            assert len(left_of(session)) > 5
        finally:
            process.kill()
    assert_nothing_is_left_of(session)


TWO = f"""{ALL_REDUCE}
import resource
from concurrent.futures import ThreadPoolExecutor

resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]  # select.select fails with as many

def one(_):
    with cluster(workers=2) as c:
        return c.run(step)

with ThreadPoolExecutor(2) as threads:
    assert list(threads.map(one, range(4))) == [{{"worker-0": 2.0, "worker-1": 2.0}}] * 4
with cluster(workers=2) as c:
    def check(strategy):
        barrier(30)
        return strategy.num_replicas_in_sync, os.getpid()

    assert c.run(check) == {{name: (2, task.pid) for name, task in c.tasks.items()}}
    assert c.run(lambda: breakpoint() or 5, on="worker-1") == {{"worker-1": 5}}
    assert c.logs("worker-1").endswith("a breakpoint is passed over: the test has no terminal\\n")
print("fine")
"""


@pytest.mark.slow
def test_clusters_of_several_threads_and_processes_do_not_meet(script: Callable[..., Path]) -> None:
    command = [sys.executable, str(script(TWO))]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=DEADLINE_S * 2)
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == "fine"


STOPS = f"""{ALL_REDUCE}
def look():
    answer = 40
    breakpoint()
    return answer

def turn():
    print("turns", flush=True)
    while True:
        time.sleep(0.01)

with cluster(workers=2, timeout=60) as c:
    print("returned", c.run(look, on="worker-1"), flush=True)
    job = c.start(turn, on="worker-0")
    c.wait_for("worker-0", log="turns")
    c.debug("worker-0")
    print("goes on", flush=True)
    job.result()
"""


OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, [sys.executable, sys.argv[1]])"
)


@pytest.mark.slow
def test_a_breakpoint_in_a_task_is_at_the_terminal_of_the_test_and_ctrl_c_ends_all(script: Callable[..., Path], place: Path) -> None:
    path = script(STOPS)
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-c", OWN_TERMINAL, str(path)]  # pty.fork would fork this process, which may have threads
    env = {**os.environ, "TMPDIR": str(place)}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=env)
    os.close(theirs)
    said = b""

    def hear(text: str) -> None:
        nonlocal said
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(text.encode(), said):
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 65536)

    try:
        hear(r"\(worker-1\) $")
        assert b"return answer" in said
        os.write(terminal, b"answer = 42\n")
        hear(r"answer = 42\r\n\(worker-1\) $")
        os.write(terminal, b"c\n")
        hear(r"returned \{'worker-1': 42\}")
        hear(r"turn\(\)(.*\n)*\(worker-0\) $")
        os.write(terminal, b"c\n")
        hear("goes on")
        (session,) = place.glob("orch-testing-*")
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # Linux says so where others say nothing more comes
            hear("a line that never comes")
        assert b"KeyboardInterrupt" in said
    finally:
        os.close(terminal)  # which ends whoever is still there
        process.wait(DEADLINE_S)
    assert_nothing_is_left_of(session)
    assert not session.exists()


@pytest.mark.root
def test_named_pipes_and_links_of_other_users_keep_no_tests_waiting(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user may make a directory with the name of a session in the directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    own = place / "orch-testing-own"
    own.mkdir()
    os.mkfifo(own / "lock")
    others = place / "orch-testing-x"
    others.mkdir()
    os.mkfifo(others / "lock", 0o644)
    (place / "orch-testing-y").symlink_to(place / "elsewhere")
    (place / "elsewhere").mkdir()
    (place / "elsewhere/lock").touch()
    os.utime(place / "elsewhere/lock", (1, 1))
    os.chown(others / "lock", 65534, 65534)
    os.chown(others, 65534, 65534)
    sweeper = multiprocessing.get_context("fork").Process(target=session._sweep)
    sweeper.start()
    sweeper.join(PATIENCE_S)
    sweeper.kill()
    assert sweeper.exitcode == 0
    assert (place / "elsewhere/lock").exists()


def test_the_directory_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    for name in ("dead", "living"):
        (place / f"orch-testing-{name}").mkdir()
        (place / f"orch-testing-{name}/lock").touch()
        os.utime(place / f"orch-testing-{name}/lock", (1, 1))
    with (place / "orch-testing-living/lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        session._sweep()
    assert [path.name for path in place.iterdir()] == ["orch-testing-living"]
