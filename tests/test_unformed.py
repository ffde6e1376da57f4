"""Clusters that never form: tasks that train by themselves, and tasks that look for their peers elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Orch
from tests.live import PATIENCE_S, PRELUDE, wait_until

Script = Callable[..., Path]
TENSORFLOW = "import sys, types\nsys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
TRAIN = f"{TENSORFLOW}print('trained')\n"
WARNING = "no cluster was formed: no task opened its port, so worker-0..1 each did all of the work alone"


def verdict(directory: Path) -> Any:
    return json.loads((directory / ".orch" / "latest" / "result.json").read_text())


def test_two_trainings_in_place_of_one_are_said_everywhere_and_are_no_failure(orch: Orch, script: Script, tmp_path: Path) -> None:
    script(TRAIN, "train.py")
    for words in ([], ["-q"]):
        done = orch("up", "train.py", "-n", "2", *words, check=0)
        assert f"orch:   warning: {WARNING}\norch:   fix: build a strategy of tf.distribute, " in done.err
    assert verdict(tmp_path)["warning"] == WARNING
    assert orch("ps", check=0).out.splitlines()[0].endswith(f"exit code 0; warning: {WARNING}")
    assert json.loads(orch("ps", "--json", check=0).out)["result"]["warning"] == WARNING
    last = json.loads(orch("up", "train.py", "-n", "2", "--json", check=0).out.splitlines()[-1])
    assert (last["event"], last["warning"]) == ("verdict", WARNING)


@pytest.mark.parametrize(
    "words",
    [["-n", "1"], ["-n", "1", "--evaluator"], ["--strategy", "none"], ["-n", "1", "--set", "tasks.data_worker=1", "--set", "preload=[]"]],
    ids=" ".join,
)
def test_a_lone_task_is_its_own_cluster(orch: Orch, script: Script, tmp_path: Path, words: list[str]) -> None:
    if "tasks.data_worker=1" in words:
        pytest.importorskip("tensorflow")
    script(TRAIN, "train.py")
    orch("up", "train.py", *words, check=0)
    assert verdict(tmp_path)["warning"] == ""


def test_of_a_program_without_tensorflow_nothing_is_known(orch: Orch, script: Script, tmp_path: Path) -> None:
    """It may have found its peers in a way of its own."""
    script("print('trained')", "train.py")
    orch("up", "train.py", "-n", "2", check=0)
    assert verdict(tmp_path)["warning"] == ""


@pytest.mark.parametrize("listens", ["True", "TASK == 'worker-1'"], ids=["all", "one"])
def test_a_port_that_was_open_at_the_end_is_known_however_short_the_program(
    orch: Orch, script: Script, tmp_path: Path, listens: str
) -> None:
    script(f"{TENSORFLOW}{PRELUDE}\nif {listens}:\n    server = listen()\n", "train.py")
    orch("up", "train.py", "-n", "2", "--set", "preload=[]", check=0)
    assert verdict(tmp_path)["warning"] == ""


def test_servers_that_a_chief_has_left_alone_were_up(orch: Orch, script: Script, tmp_path: Path) -> None:
    """They may have come up right before the chief's end, which is theirs."""
    text = """
if TASK == "chief-0":
    wait_for("worker-0.ready", "ps-0.ready")
elif {listens}:
    server = listen()
ready()
if TASK != "chief-0":
    sleep()
"""
    script(TENSORFLOW + PRELUDE + text.format(listens=True), "train.py")
    orch("up", "train.py", "--ps", "1", check=0)
    assert verdict(tmp_path)["warning"] == ""
    for task in ("worker-0", "ps-0"):
        (tmp_path / f"{task}.ready").unlink()
    script(TENSORFLOW + PRELUDE + text.format(listens=False), "train.py")
    orch("up", "train.py", "--ps", "1", check=0)
    assert verdict(tmp_path)["warning"].endswith("so chief-0 did all of the work alone")


OWN = """
import json, os, time
cluster = {"worker": ["localhost:12345", "localhost:23456"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
time.sleep(1000)
"""


def test_tasks_that_wait_with_a_tf_config_of_their_own_are_told_where_it_was_set(orch: Orch, script: Script) -> None:
    script(OWN, "train.py")
    running = orch.start("up", "train.py", "-n", "2", "--set", "timeouts.start_s=8")
    reason = "waiting for worker-0..1: no port is open yet; its TF_CONFIG is not the one that orch gave it: train.py:4 set it"
    running.wait_for(f"orch: {reason} (0 of 2 up)\n")
    assert f"(timeouts.start_s); {reason}\n" in running.wait(check=124).err


IMPATIENT = """
import runpy
from orchestrator.model.policy import readiness
readiness.LONG_WAIT_S = 1.0
runpy.run_module("orchestrator", run_name="__main__")
"""


def test_a_long_wait_says_once_what_to_look_at_without_a_deadline(orch: Orch, script: Script, tmp_path: Path) -> None:
    script("import time; time.sleep(1000)", "train.py")
    script(IMPATIENT, "orch.py")
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "orch.py", "up", "train.py", "-n", "2"], cwd=tmp_path, stderr=file)
    wait_until(lambda: "orch: all tasks run, and the cluster has not formed for 1 s: orch stacks shows where" in log.read_text(), "advice")
    wait_until(lambda: "(0 of 2 up" in log.read_text(), "line on who is waited for")
    orch("down", "--now", check=0)
    process.wait(PATIENCE_S)
    assert log.read_text().count("all tasks run") == 1
