"""SIGTERM in a process whose training can save on order, and in the children that the process forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.protocol import task_files
from worker.task.checkpoints import save_orders
from worker.task.checkpoints.fit_session import FitSession
from worker.task.checkpoints.training_session import TrainingSession

FORK = """
import os, signal, time
from pathlib import Path
from worker.task.checkpoints import save_orders
from worker.task.checkpoints.fit_session import FitSession
from worker.task.checkpoints.training_session import TrainingSession

save_orders.begin(7)
children = []
for _ in range(2):
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b"1")
        time.sleep(20.0)
        os._exit(3)
    os.read(ready, 1)
    children.append(child)
for child in children:
    os.kill(child, signal.SIGTERM)
    until = time.monotonic() + 5.0
    while not (found := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if not found[0]:
        os.kill(child, signal.SIGKILL)
    print(found[0] == child and os.WTERMSIG(found[1]))
time.sleep(0.2)
saving = Path(os.environ["ORCH_LOG_DIR"], "saving")
print(saving.read_text())
os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 5.0
while "asks" not in saving.read_text() and time.monotonic() < until:
    time.sleep(0.01)
print(saving.read_text())
"""


def test_a_forked_child_ends_at_sigterm_and_its_parent_does_not_ask_for_a_save(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env={**os.environ, "ORCH_LOG_DIR": str(tmp_path), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["15", "15", "ready 7", "", "ready 7", "asks 7", "", ""], done


def test_a_training_that_turns_out_not_to_be_saved_says_so_and_a_later_one_is_able_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_LOG_DIR", str(tmp_path))
    monkeypatch.setattr(save_orders, "_catch_sigterm", lambda: None)
    monkeypatch.setattr(save_orders, "_task", save_orders._State())
    save_orders.begin(0)
    save_orders.begin(3)
    save_orders.end()
    assert (tmp_path / "saving").read_text() == "ready 0\n", "one of two trainings is still saved"
    fit = object.__new__(FitSession)
    fit._session = TrainingSession(None, None, None, None)  # type: ignore[arg-type]
    fit._session._can_save = True
    fit._turn_off("a variable was made in the first step")
    fit._turn_off("again")
    save_orders.begin(5)
    os.close(save_orders._task.fd)
    assert (tmp_path / "saving").read_text() == "ready 0\nunable 3\nready 5\n"


def test_a_chief_whose_save_waits_for_a_worker_that_is_further_goes_on_to_the_step_that_is_named_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = tmp_path / "order"
    order.write_bytes(task_files.save_order(task_files.SAVE, 7))
    with order.open("rb") as file:
        monkeypatch.setattr(save_orders._task, "fd", file.fileno())
        is_given_up = threading.Event()
        series = SimpleNamespace(is_chief=True, is_writing=True, wait=lambda: is_given_up.wait(5.0), is_saved=lambda step: False)
        later = threading.Timer(0.1, lambda: order.write_bytes(task_files.save_order(task_files.SAVE, 9)))
        later.start()
        save_orders.leave(series, 7)
        later.join()
