"""A strategy is a row: two that are made up are planned, checked and run, and no module of orch knows their names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Completed, Orch
from tests.live import LiveRun
from tests.worker.agent_double import ROOT

ORCH_WITH_TWO_MORE = """
import sys
from orchestrator.model.strategies import STRATEGIES, Role, Strategy

STRATEGIES["solo"] = Strategy(
    "solo",
    "one task on a machine of its own, with keys of its own",
    {"worker": Role(count=1, cluster=None, decides=True)},
    one_process=True,
    opens_ports=False,
    sections=("collectives",),
)
STRATEGIES["relay"] = Strategy(
    "relay",
    "a chief, and workers that serve it",
    {"chief": Role(count=1, decides=True), "worker": Role(count=2, serves=True, restarts_alone=True)},
)
sys.argv[0] = "orch"
from orchestrator.cli import main
main()
"""
SCRIPT = """
import json, os, time
import worker

task = worker.context()
cluster = {kind: len(found) for kind, found in task.cluster.items()}
with open(f"{task.task}.new", "w") as file:
    json.dump([task.strategy, cluster, task.settings.collectives.heartbeat_s], file)
os.rename(f"{task.task}.new", f"{task.task}.json")
if task.type == "chief":
    while not all(os.path.exists(f"{name}.json") for name in ("worker-0", "worker-1")):
        time.sleep(0.05)
elif "chief" in cluster:
    time.sleep(600)
"""


@pytest.fixture
def extended(script: Callable[..., Path], tmp_path: Path) -> Callable[..., Completed]:
    """`orch` with two more strategies: ``extended("up", "script.py", check=0)``."""
    program = script(ORCH_WITH_TWO_MORE, "extended.py")
    script(SCRIPT)

    def run(*words: str, check: int) -> Completed:
        done = subprocess.run(
            [sys.executable, program, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == check, done.stdout + done.stderr
        return Completed(done.returncode, done.stdout, done.stderr, 0.0)

    return run


def written(directory: Path) -> dict[str, list[object]]:
    return {path.stem: json.loads(path.read_text()) for path in directory.glob("*-*.json")}


def test_one_task_with_keys_of_its_own(extended: Callable[..., Completed], tmp_path: Path) -> None:
    (task,) = json.loads(extended("plan", "script.py", "--strategy", "solo", "--json", check=0).out)["tasks"]
    assert (task["task"], task["tf_config"]) == ("worker-0", None)
    extended("up", "script.py", "--strategy", "solo", "--set", "collectives.heartbeat_s=3", "--set", "preload=[]", check=0)
    assert written(tmp_path) == {"worker-0": ["solo", {}, 3.0]}


def test_a_chief_and_the_workers_that_serve_it(extended: Callable[..., Completed], tmp_path: Path) -> None:
    extended("up", "script.py", "--strategy", "relay", "-n", "2", "--set", "preload=[]", check=0)
    cluster = {"chief": 1, "worker": 2}
    assert written(tmp_path) == {name: ["relay", cluster, None] for name in ("chief-0", "worker-0", "worker-1")}
    assert LiveRun(tmp_path).result()["exit_code"] == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("--strategy", "solo", "-n", "2"),
            "strategy solo runs in one process: it takes 1 task\n       fix: for several use multi_worker_mirrored",
        ),
        (("--strategy", "solo", "--set", "serve=true"), "serve: is for strategy parameter_server, not solo"),
        (("--strategy", "relay", "--set", "collectives.heartbeat_s=3"), "for strategy multi_worker_mirrored or solo, not relay"),
        (("--strategy", "relay", "--ps", "1"), "--ps: ps tasks are for strategy parameter_server, not relay"),
        (("--strategy", "rellay"), "did you mean 'relay'"),
    ],
    ids=["several tasks", "another's key", "own key", "another's tasks", "misspelt"],
)
def test_its_spec_is_checked(extended: Callable[..., Completed], words: tuple[str, ...], complaint: str) -> None:
    assert complaint in extended("plan", "script.py", *words, check=2).err


def test_the_texts_name_it(extended: Callable[..., Completed]) -> None:
    assert "mirrored, one_device, tpu, none, solo or relay" in " ".join(
        extended("up", "--strategy", "zzzzz", "script.py", check=2).err.split()
    )


# --- with a section of its own, which no test can add from outside: in a copy of the code ---------

EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "orchestrator/model/strategies.py": (
        (
            '_in_one_process("none",',
            'Strategy("pod", "one task that steers a pod", {"worker": Role(count=1, cluster=None, decides=True)}, '
            'one_process=True, opens_ports=False, sections=("pod",)),\n        _in_one_process("none",',
        ),
    ),
    "orchestrator/model/settings/run_sections.py": (
        ("    collectives: Coll", '    pod: PodSettings = setting(PodSettings(), "Which pod.")\n    collectives: Coll'),
        (
            "from worker.values.fast_dataclass import dataclass\n",
            "from worker.values.fast_dataclass import dataclass\nfrom worker.settings.task_settings import PodSettings\n",
        ),
    ),
    "worker/settings/task_settings.py": (
        (
            "@dataclass(frozen=True, slots=True)\nclass TaskSettings:",
            """from .declare import setting


@dataclass(frozen=True, slots=True)
class PodSettings:
    name: str = setting("here", "The name of the pod.")
    chips: int = setting(1, "How many chips it has.", least=1, most=64)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    pod: PodSettings = PodSettings()""",
        ),
    ),
    "worker/task/strategy/strategy_builder.py": (
        ('    "tpu": _tpu,\n', '    "pod": lambda task: f"{task.settings.pod.name}: {task.settings.pod.chips}",\n    "tpu": _tpu,\n'),
    ),
}
"""All that a strategy with keys of its own is: a row, a section and its field, a field of the tasks' settings, a builder."""


@pytest.fixture
def edited(tmp_path: Path) -> dict[str, str]:
    for room in ("orchestrator", "worker"):
        shutil.copytree(ROOT / room, tmp_path / "copy" / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in EDITS.items():
        path = tmp_path / "copy" / name
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    return {"PYTHONPATH": str(tmp_path / "copy")}


def test_four_files_make_a_strategy_with_keys_of_its_own(
    orch: Orch, edited: dict[str, str], script: Callable[..., Path], tmp_path: Path
) -> None:
    script("import os, worker\nprint(worker.strategy(), 'TF_CONFIG' in os.environ)")
    (tmp_path / "orch.yaml").write_text("script: script.py\nstrategy: pod\npod: {name: mine, chips: 8}\npreload: []\n")
    orch("up", env=edited, check=0)
    assert LiveRun(tmp_path).log("worker-0") == b"mine: 8 False\n"
    assert "  pod.chips: 8\n" in orch("plan", env=edited, check=0).out
    refused = orch("plan", "--strategy", "none", env=edited, check=2).err
    assert "orch.yaml:3: pod: is for strategy pod, not none" in refused
    assert "pod.chips: must be at least 1, not 0" in orch("plan", "--set", "pod.chips=0", env=edited, check=2).err
