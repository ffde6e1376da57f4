"""`orch stacks` for tasks that answer, that cannot, and that never will."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Orch, Running
from tests.live import LiveRun, held_run, wait_until_ready, write_script


@pytest.fixture
def running(orch: Orch, tmp_path: Path) -> Running:
    """Four tasks: two in a lock, one that blocks the signal that asks, one that ignores it."""
    write_script(
        tmp_path,
        """
        import threading

        def wait():
            lock = threading.Lock()
            lock.acquire()
            ready()
            lock.acquire()

        if TASK == "worker-2":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])
        if TASK == "worker-3":
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        wait()
        """,
    )
    running = orch.start("up", "script.py", "-n", "4", "--grace", "0.5")
    wait_until_ready(tmp_path, *(f"worker-{i}" for i in range(4)))
    return running


def test_tasks_that_cannot_answer_are_said_to_be_so_and_left_alone(orch: Orch, tmp_path: Path, running: Running) -> None:
    found = orch("stacks", check=0).out.splitlines()
    line = next(number for number, text in enumerate((tmp_path / "script.py").read_text().splitlines(), 1) if "    ready()" in text) + 1
    assert found == [
        f"worker-0..1: in lock.acquire (script.py:{line})",
        "worker-2: blocks SIGQUIT in all of its threads",
        "worker-3: ignores SIGQUIT, which asks for its stacks",
    ]
    pid = LiveRun(tmp_path).event("task_started", task="worker-1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "worker-1: is stopped (SIGSTOP)" in orch("stacks", check=0).out
    assert "orch: is stopped (SIGSTOP)" in orch("stacks", "--full", check=0).out
    running.signal(signal.SIGTERM)
    running.wait(check=143)


def test_native_frames_need_py_spy(orch: Orch, tmp_path: Path, running: Running) -> None:
    directory = os.path.dirname(os.path.realpath(shutil.which("sh") or "/bin/sh"))
    if shutil.which("py-spy") is None:
        assert "pip install py-spy" in orch("stacks", "--native", env={"PATH": directory}, check=2).err
        running.signal(signal.SIGTERM)
        running.wait(check=143)
        pytest.skip("NOT TESTED: py-spy is not installed; that it is missing was said")
    found = orch("stacks", "--native", check=0).out
    # py-spy shows what Python cannot: the C function below the user's line, also for a task that is deaf to signals.
    assert found.count("wait (script.py:") == 4
    assert "sem_" in found or "futex" in found or "lock" in found
    running.signal(signal.SIGTERM)
    running.wait(check=143)


def test_a_run_that_ends_just_then_is_said_to_be_over(orch: Orch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch") as (run, holder):
        gone = subprocess.Popen(["true"])
        gone.wait()
        (run.path / "lock").write_text(str(gone.pid))
        done = orch("stacks", check=2)
        assert done.err == "Error: one is not running\n"
        assert holder.poll() is None
