"""`orch stacks` for tasks that answer, that cannot, and that never will."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Orch, Running
from tests.live import LiveRun, wait_until_ready, write_script


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
