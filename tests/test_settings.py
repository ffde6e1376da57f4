"""What the spec says of the inside of a task reaches the task as one value, however and wherever the task is started. No TensorFlow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import Orch
from tests.live import LiveRun

SHOW = """
import json, os, subprocess, sys
import worker

settings = worker.context().settings
child = "import os; print(os.environ['ORCH_TASK_SETTINGS'])"
child = json.loads(subprocess.check_output([sys.executable, "-c", child]))
found = [settings.strategy, settings.devices.cpus, settings.collectives.heartbeat_s, settings.collectives.timeout_s]
print(json.dumps([found, child["devices"], child.get("collectives", {})]))
"""
"""Prints what the settings of a task say, and what a process finds that the task starts."""
SAID = ("--set", "collectives={timeout_s: 7, heartbeat_s: 5}", "--cpus", "3", "--set", "tasks.worker.overrides.1.devices.cpus=4")
WORKER_0 = [["multi_worker_mirrored", 3, 5.0, 7.0], {"cpus": 3}, {"heartbeat_s": 5.0, "timeout_s": 7.0}]
WORKER_1 = [["multi_worker_mirrored", 4, 5.0, 7.0], {"cpus": 4}, {"heartbeat_s": 5.0, "timeout_s": 7.0}]
EVALUATOR = [["multi_worker_mirrored", 3, None, None], {"cpus": 3}, {}]
"""It has no peers that it would wait for."""

STUB = """
import json, types
import worker

class Server:
    def __init__(self, cluster, **options):
        pass

    def join(self):
        import os, time
        settings = worker.context().settings
        with open(f"settings-{os.environ['ORCH_TASK']}.new", "w") as file:
            json.dump([settings.strategy, settings.devices.cpus], file)
        os.rename(file.name, file.name.removesuffix(".new"))
        while True:
            time.sleep(60)

distribute = types.SimpleNamespace(Server=Server)
train = types.SimpleNamespace(ClusterSpec=dict)
config = types.SimpleNamespace(set_logical_device_configuration=lambda *_: None, list_physical_devices=lambda *_: [""],
                               LogicalDeviceConfiguration=lambda *_, **__: None)
"""
"""A `tensorflow` whose server writes down what its task was told."""
WAIT = """
import os, time
while not all(os.path.exists(f"settings-{task}") for task in ("worker-0", "ps-0")):
    time.sleep(0.05)
"""


def shown(directory: Path) -> dict[str, Any]:
    """What each task of the latest run has printed."""
    logs = (LiveRun(directory).path / "attempt-1").glob("*/stdout.log")
    return {log.parent.name: json.loads(log.read_text()) for log in logs}


@pytest.mark.parametrize("preload", ["[json]", "[]"], ids=["forked", "executed"])
def test_every_task_knows_what_the_spec_says(orch: Orch, script: Callable[..., Path], tmp_path: Path, preload: str) -> None:
    script(SHOW)
    orch("up", "script.py", "-n", "2", "--evaluator", "--set", f"preload={preload}", *SAID, check=0)
    assert shown(tmp_path) == {"worker-0": WORKER_0, "worker-1": WORKER_1, "evaluator-0": EVALUATOR}


def test_a_command_finds_them_in_its_environment(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script('#!/bin/sh\necho "$ORCH_TASK_SETTINGS"\n', "show.sh").chmod(0o700)
    orch("up", "--no-python", "./show.sh", "-n", "2", check=0)
    assert list(shown(tmp_path).values()) == [{"strategy": "multi_worker_mirrored"}] * 2


def test_a_task_that_orch_serves_knows_them_too(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script(WAIT)
    (tmp_path / "tensorflow/python/eager").mkdir(parents=True)
    script(STUB, "tensorflow/__init__.py")
    script("import types\ncontext = lambda: types.SimpleNamespace(config=None)\n", "tensorflow/python/eager/context.py")
    options = ("--ps", "1", "-n", "1", "--serve", "--cpus", "2", "--set", "preload=[]", "--set", "tasks.ps.devices.cpus=1")
    orch("up", "script.py", *options, check=0)
    found = {task: json.loads((tmp_path / f"settings-{task}").read_text()) for task in ("worker-0", "ps-0")}
    assert found == {"worker-0": ["parameter_server", 2], "ps-0": ["parameter_server", 1]}


@pytest.mark.root
def test_tasks_on_other_hosts_know_them(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    ssh = ("-H", "hostA:1,hostB:1", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--python", sys.executable)
    orch("up", "script.py", *ssh, *SAID, check=0)
    assert shown(tmp_path) == {"worker-0": WORKER_0, "worker-1": WORKER_1}


def test_a_plan_shows_what_the_tasks_will_be_told(orch: Orch, script: Callable[..., Path]) -> None:
    script(SHOW)
    tasks = json.loads(orch("plan", "script.py", "-n", "2", *SAID, "--json", check=0).out)["tasks"]
    assert [(task["devices"], task["collectives"]) for task in tasks] == [tuple(WORKER_0[1:]), tuple(WORKER_1[1:])]
    assert json.loads(tasks[1]["env"]["ORCH_TASK_SETTINGS"]) == {
        "strategy": "multi_worker_mirrored",
        "devices": {"cpus": 4},
        "collectives": {"heartbeat_s": 5.0, "timeout_s": 7.0},
    }
