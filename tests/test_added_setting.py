"""A setting is added by touching two files, and is then everywhere: shown on a copy of orch that has two more.

The task applies `stubbornness`; the agent applies `pleasantness` before the program runs. Nobody will want settings of these names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EDITS = {
    "worker/settings/collective_settings.py": (
        "    # `tf.distribute.experimental.CommunicationOptions`",
        """    stubbornness: int | None = setting(
        None, "How often an operation is tried again.", example="3", words="never", flag="--collective-stubbornness", least=1, most=9
    )
""",
    ),
    "worker/task/strategy/collective_timeouts.py": (
        '    if "heartbeat_s" in settings:',
        """    if "stubbornness" in settings:
        print("applied:", settings["stubbornness"])
""",
    ),
    "worker/settings/device_settings.py": (
        "    cpus: int | None = setting(",
        """    pleasantness: int | None = setting(
        None, "The priority of a task's processes.", example="5", words="the agent's", flag="--pleasantness", most=19, everywhere=True
    )
""",
    ),
    "worker/host/processes/process_setup.py": (
        '        if devices.get("cores"):',
        """        if devices.get("pleasantness"):
            os.nice(devices["pleasantness"])
""",
    ),
}
"""What adding each setting takes: its declaration, and the place that applies it. The lines go before those that are named."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """orch with two more settings."""
    copy = tmp_path_factory.mktemp("orch")
    for package in ("orchestrator", "worker"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, lines) in EDITS.items():
        text = (copy / name).read_text()
        assert text.count(before) == 1
        (copy / name).write_text(text.replace(before, lines + before))
    return copy


@pytest.fixture
def run(tree: Path, tmp_path: Path) -> Any:
    def run(*words: str, module: str = "orchestrator", code: int = 0, **variables: str) -> str:
        """What a command of that orch prints, on stderr if it fails."""
        environment = {**os.environ, "PYTHONPATH": str(tree), "ORCH_HOME": str(tmp_path / "home"), **variables}
        start = f"import runpy, sys; del sys.path[0]; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        command = [sys.executable, "-c", start, *words]  # `python -P -m`, which Python 3.10 does not have
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    (tmp_path / "train.py").write_text("import worker\nprint('told:', worker.context().settings.collectives.stubbornness)\n")
    return run


def planned(text: str) -> int:
    return int(json.loads(text)["tasks"][0]["collectives"]["stubbornness"])


def test_it_is_checked_with_its_place(run: Any, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: train.py\ncollectives:\n  stubbornness: 0\n  stubborness: 3\n")
    assert run("plan", code=2).splitlines() == [
        "error: orch.yaml:3: collectives.stubbornness: must be at least 1, not 0",
        "       orch.yaml:4: collectives: unknown key 'stubborness'",
        "       fix: did you mean 'stubbornness'?",
    ]


def test_it_is_described(run: Any, tmp_path: Path) -> None:
    schema = json.loads(run(module="orchestrator.model.settings.describe"))
    assert schema["properties"]["collectives"]["anyOf"][0]["properties"]["stubbornness"] == {
        "title": "stubbornness",
        "description": "How often an operation is tried again. Default: never.",
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}],
    }
    run("init", "--all")
    assert "#  # How often an operation is tried again.\n#  # Default: never.\n#  stubbornness: 3\n" in (tmp_path / "orch.yaml").read_text()
    assert " ".join(run("up", "--help").split()).count("--collective-stubbornness N How often an operation is tried again.") == 1


def test_it_is_said_by_flag_variable_and_assignment(run: Any) -> None:
    plan = ("plan", "train.py", "--json")
    assert planned(run(*plan, "--set", "collectives.stubbornness=2")) == 2
    assert planned(run(*plan, ORCH_COLLECTIVE_STUBBORNNESS="3")) == 3
    assert planned(run(*plan, "--collective-stubbornness", "4", ORCH_COLLECTIVE_STUBBORNNESS="3")) == 4
    refused = run(*plan, ORCH_COLLECTIVE_STUBBORNNESS="10", code=2)
    assert refused == "error: ORCH_COLLECTIVE_STUBBORNNESS: must be at most 9, not 10\n"


def test_it_reaches_the_tasks_and_comes_back_from_the_spec_of_a_run(run: Any, tmp_path: Path) -> None:
    out = run("up", "train.py", "--collective-stubbornness", "5", "--set", "preload=[]")
    assert "applied: 5" in out
    assert "told: 5" in out
    spec = next((tmp_path / "home").glob("runs/*/spec.yaml"))
    assert json.loads(spec.read_text())["collectives"]["stubbornness"] == 5
    assert planned(run("plan", "-f", str(spec), "--json")) == 5


LAYERS = """
command: nice
tasks:
  worker: {count: 3, devices: {pleasantness: 2}, overrides: {2: {devices: {pleasantness: 3}}}}
  evaluator: 1
defaults: {devices: {pleasantness: 1}}
"""


def test_what_the_agent_applies_is_said_for_all_tasks_for_a_type_and_for_one_task(run: Any, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(LAYERS)
    assert "\n  devices.pleasantness: 3\n" in run("plan")
    ours = os.nice(0)
    found = {int(line.split()[-1]) - ours for line in run("up").splitlines()}
    assert found == {1, 2, 3}, "the program prints its priority"
    spec = next((tmp_path / "home").glob("runs/*/spec.yaml"))
    assert [task["devices"] for task in json.loads(run("plan", "-f", str(spec), "--json"))["tasks"]] == [
        {"pleasantness": value} for value in (2, 2, 3, 1)
    ]
    (tmp_path / "train.py").write_text("import os\nprint('nice:', os.nice(0))\n")
    assert f"nice: {ours + 4}" in run("up", "train.py", "--pleasantness", "4", "--set", "preload=[json]", "--set", "tasks={worker: 1}")
