"""`orch stacks` for tasks that answer, that cannot, and that never will."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.cli.commands import stacks_command
from orchestrator.errors import UsageError
from tests.conftest import Orch, Running
from tests.live import LiveRun, held_run, wait_until_ready, write_script


@pytest.fixture
def running(orch: Orch, tmp_path: Path) -> Running:
    """Four tasks: three in a lock, one that ignores the signal that asks."""
    write_script(
        tmp_path,
        """
        import threading

        def wait():
            lock = threading.Lock()
            lock.acquire()
            ready()
            lock.acquire()

        if TASK == "worker-3":
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        wait()
        """,
    )
    running = orch.start("up", "script.py", "-n", "4", "--set", "timeouts.grace_s=0.5")
    wait_until_ready(tmp_path, *(f"worker-{i}" for i in range(4)))
    return running


def test_tasks_that_cannot_answer_are_said_to_be_so_and_left_alone(orch: Orch, tmp_path: Path, running: Running) -> None:
    found = orch("stacks", check=0).out.splitlines()
    line = next(number for number, text in enumerate((tmp_path / "script.py").read_text().splitlines(), 1) if "    ready()" in text) + 1
    assert found == [
        f"worker-0..2: in lock.acquire (script.py:{line})",
        "worker-3: has no handler for SIGQUIT, which asks for its stacks, the odd one out",
    ]
    stacks = json.loads(orch("stacks", "--json", check=0).out)
    main, *others = stacks["worker-0"]["threads"]
    assert (main["thread"], stacks["worker-0"]["place"]) == ("main", f"in lock.acquire (script.py:{line})")
    assert any(frame["file"].endswith("script.py") and frame["line"] == line for frame in main["frames"])
    assert [one["thread"] for one in others] == sorted((one["thread"] for one in others), key=["other", "orch"].index)
    assert stacks["worker-3"]["threads"] == []
    assert "has no handler" in stacks["worker-3"]["note"]
    assert set(stacks) == {f"worker-{i}" for i in range(4)}
    assert orch("stacks", "--task", "worker-3", check=0).out.startswith("worker-3: has no handler")
    pid = LiveRun(tmp_path).event("task_started", task="worker-1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "worker-1: is stopped (SIGSTOP)" in orch("stacks", check=0).out
    assert "orch: is stopped (SIGSTOP)" in orch("stacks", "--full", check=0).out
    running.signal(signal.SIGTERM)
    running.wait(check=143)


@pytest.mark.skipif(stacks_command.find_py_spy() is None, reason="NOT TESTED: py-spy is not installed here (pip install py-spy)")
def test_native_frames_are_shown_by_py_spy(orch: Orch, running: Running) -> None:
    found = orch("stacks", "--native", check=0).out
    running.signal(signal.SIGTERM)
    running.wait(check=143)
    if re.search("permission denied|operation not permitted", found, re.IGNORECASE):
        pytest.skip("NOT TESTED: py-spy may not look into processes here (ptrace)")
    # py-spy shows what Python cannot: the C function below the user's line, also for a task that is deaf to signals.
    assert found.count("wait (script.py:") == 4
    assert "sem_" in found or "futex" in found or "lock" in found


def test_native_frames_need_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch"):
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
        monkeypatch.setenv("PATH", str(tmp_path / "path"))
        with pytest.raises(UsageError, match="pip install py-spy"):
            cli.orch.main(["stacks", "--native", "--home", str(tmp_path / ".orch")], standalone_mode=False)
    for name in ("path", "bin"):
        (tmp_path / name).mkdir()
        py_spy = tmp_path / name / "py-spy"
        py_spy.touch(0o700)
        assert stacks_command.find_py_spy() == str(py_spy)
