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
import json, os, subprocess, sys, time
import worker

settings = worker.context().settings
child = "import os; print(os.environ['ORCH_TASK_SETTINGS'])"
child = json.loads(subprocess.check_output([sys.executable, "-c", child]))
found = [settings.strategy, settings.devices.cpus, settings.collectives.heartbeat_s, settings.collectives.implementation]
print(json.dumps([found, child["devices"], child.get("collectives", {})]), flush=True)
if worker.context().type == "evaluator":
    open("evaluated", "w").close()
while not os.path.exists("evaluated"):
    time.sleep(0.05)
"""
"""Prints what the settings of a task say, and what a process finds that the task starts. The evaluator is waited for."""
SAID = ("--set", "collectives={implementation: ring, heartbeat_s: 5}", "--cpus", "3", "--set", "tasks.worker.overrides.1.devices.cpus=4")
WORKER_0 = [["multi_worker_mirrored", 3, 5.0, "ring"], {"cpus": 3}, {"heartbeat_s": 5.0, "implementation": "ring"}]
WORKER_1 = [["multi_worker_mirrored", 4, 5.0, "ring"], {"cpus": 4}, {"heartbeat_s": 5.0, "implementation": "ring"}]
EVALUATOR = [["multi_worker_mirrored", 3, None, None], {"cpus": 3}, {}]

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


Write = Callable[..., Path]


def show(orch: Orch, script: Write, directory: Path, *options: str) -> None:
    script(SHOW)
    orch("up", "script.py", "-n", "2", "--evaluator", *SAID, *options, check=0)
    assert shown(directory) == {"worker-0": WORKER_0, "worker-1": WORKER_1, "evaluator-0": EVALUATOR}


def show_forked(orch: Orch, script: Write, directory: Path, *options: str) -> None:
    show(orch, script, directory, "--set", "preload=[json]", *options)


def show_executed(orch: Orch, script: Write, directory: Path, *options: str) -> None:
    show(orch, script, directory, "--set", "preload=[]", *options)


def show_command(orch: Orch, script: Write, directory: Path, *options: str) -> None:
    script('#!/bin/sh\necho "$ORCH_TASK_SETTINGS"\n', "show.sh").chmod(0o700)
    orch("up", "--no-python", "./show.sh", "-n", "2", *options, check=0)
    assert list(shown(directory).values()) == [{"strategy": "multi_worker_mirrored"}] * 2


def show_served(orch: Orch, script: Write, directory: Path, *options: str) -> None:
    """Tasks in which orch itself runs TensorFlow's server."""
    script(WAIT)
    (directory / "tensorflow/python/eager").mkdir(parents=True)
    script(STUB, "tensorflow/__init__.py")
    script("import types\ncontext = lambda: types.SimpleNamespace(config=None)\n", "tensorflow/python/eager/context.py")
    words = ("--ps", "1", "-n", "1", "--set", "serve=true", "--cpus", "2", "--set", "preload=[]", "--set", "tasks.ps.devices.cpus=1")
    orch("up", "script.py", *words, *options, check=0)
    found = {task: json.loads((directory / f"settings-{task}").read_text()) for task in ("worker-0", "ps-0")}
    assert found == {"worker-0": ["parameter_server", 2], "ps-0": ["parameter_server", 1]}


WAYS = pytest.mark.parametrize(
    "look", [show_forked, show_executed, show_command, show_served], ids=["forked", "executed", "command", "served"]
)


@WAYS
def test_every_task_knows_what_the_spec_says(orch: Orch, script: Write, tmp_path: Path, look: Callable[..., None]) -> None:
    look(orch, script, tmp_path)


@pytest.mark.root
@pytest.mark.tensorflow
@WAYS
def test_tasks_on_other_hosts_know_it_too(orch: Orch, bed: Bed, script: Write, tmp_path: Path, look: Callable[..., None]) -> None:
    ssh = ("-H", "hostA:1,hostB:2", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--python", sys.executable)
    look(orch, script, tmp_path, *ssh)


def test_a_plan_shows_what_the_tasks_will_be_told(orch: Orch, script: Callable[..., Path]) -> None:
    script(SHOW)
    tasks = json.loads(orch("plan", "script.py", "-n", "2", *SAID, "--json", check=0).out)["tasks"]
    assert [(task["devices"], task["collectives"]) for task in tasks] == [tuple(WORKER_0[1:]), tuple(WORKER_1[1:])]
    assert json.loads(tasks[1]["env"]["ORCH_TASK_SETTINGS"]) == {
        "strategy": "multi_worker_mirrored",
        "devices": {"cpus": 4},
        "collectives": {"heartbeat_s": 5.0, "implementation": "ring"},
    }
