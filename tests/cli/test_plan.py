"""What will be, printed before anything starts: `orch plan`, `orch up --dry-run`; and `orch init`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.model.settings.describe import json_schema, root
from tests.conftest import Orch

Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def hello(script: Script) -> Path:
    return script("print('hello')\n", "hello.py")


def planned(orch: Orch, *words: str, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    found = json.loads(orch.in_process("plan", "--json", *words, env=env, check=0).out)
    return {task["task"]: task for task in found["tasks"]}


def test_a_plan_has_every_task_and_its_tf_config_and_starts_nothing(orch: Orch, tmp_path: Path) -> None:
    tasks = planned(orch, "hello.py", "-n", "2", "--ps", "1", "--evaluator", "--", "--epochs", "5")
    assert list(tasks) == ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    cluster = tasks["worker-1"]["tf_config"]["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert tasks["worker-1"]["tf_config"]["task"] == {"type": "worker", "index": 1}
    assert tasks["evaluator-0"]["tf_config"]["task"] == {"type": "evaluator", "index": 0}
    assert tasks["chief-0"]["program"] == {"kind": "script", "target": "hello.py", "args": ["--epochs", "5"]}
    assert [path.name for path in tmp_path.iterdir()] == ["hello.py"]


def test_the_text_says_the_same_as_the_json(orch: Orch) -> None:
    text = orch.in_process("plan", "hello.py", "-n", "2", check=0).out
    for name, task in planned(orch, "hello.py", "-n", "2").items():
        block = text[text.index(f"\n{name} on local\n") :]
        assert json.loads(block.partition("TF_CONFIG=")[2].partition("\n")[0]) == task["tf_config"]
        own = {*block.split("\n\n")[0].split("\n"), *text.partition("\nall tasks\n")[2].split("\n\n")[0].split("\n")}
        assert own >= {f"  {name}={value}" for name, value in task["env"].items()}
    assert text.count("WORLD_SIZE=2") == 2, "what all tasks have alike, here LOCAL_WORLD_SIZE and WORLD_SIZE, comes once"


def test_a_table_of_the_tasks_comes_first(orch: Orch) -> None:
    text = orch.in_process("plan", "hello.py", "-n", "1", "--evaluator", "--set", "ports=4000-4010", "--cpus", "2", check=0).out
    assert text.split("\n\n")[1].splitlines() == [
        "TASK         HOST   PORT       DEVICES",
        "worker-0     local  4000-4010  cpus: 2",
        "evaluator-0  local  4000-4010  cpus: 2",
    ]
    assert "worker-0  local  -     -\n" in orch.in_process("plan", "hello.py", "--strategy", "none", check=0).out


def test_the_table_has_the_gpus_wherever_they_are_set(orch: Orch, tmp_path: Path) -> None:
    assert "  GPUs: none\n" in orch.in_process("plan", "hello.py", "--gpus", "0", check=0).out
    (tmp_path / "orch.yaml").write_text("script: hello.py\ndefaults: {env: {CUDA_VISIBLE_DEVICES: '0,2'}}\n")
    assert "  GPUs: 0,2\n" in orch.in_process("plan", check=0).out


@pytest.mark.parametrize("strategy", ["mirrored", "one_device", "none"])
def test_one_process_strategies_have_no_tf_config(orch: Orch, strategy: str) -> None:
    assert planned(orch, "hello.py", "--strategy", strategy)["worker-0"]["tf_config"] is None
    text = orch.in_process("plan", "hello.py", "--strategy", strategy, check=0).out
    assert "TF_CONFIG=" not in text
    assert "  without TF_CONFIG\n" in text


def test_what_only_a_run_decides_on_another_host_is_not_promised(orch: Orch) -> None:
    tasks = planned(orch, "hello.py", "-H", "localhost:1,hostA:1", "--env", "OMP_NUM_THREADS=3")
    assert tasks["worker-0"]["env"]["ORCH_RUN_DIR"] == "<run directory>"
    assert tasks["worker-1"]["env"]["ORCH_RUN_DIR"] == "<run directory, if this host sees it>"
    assert tasks["worker-1"]["env"]["OMP_NUM_THREADS"] == "3"
    assert tasks["worker-1"]["env"]["TF_NUM_INTRAOP_THREADS"] == "<cores of hostA / 1>"
    assert "TF_NUM_INTEROP_THREADS" not in tasks["worker-1"]["env"]
    tasks = planned(orch, "hello.py", "-H", "localhost:1,hostA:2", "--ps", "1")
    assert tasks["ps-0"]["env"]["TF_NUM_INTEROP_THREADS"] == "<cores of hostA, at least 4>"


def test_a_data_service_is_planned_from_one_flag(orch: Orch) -> None:
    tasks = planned(orch, "hello.py", "--strategy", "none", "--set", "tasks.data_worker=2")
    assert list(tasks) == ["worker-0", "dispatcher-0", "data_worker-0", "data_worker-1"]
    program = {"kind": "data_service", "target": "", "args": ["127.0.0.1:<port of data_worker-1>"]}
    assert (tasks["data_worker-1"]["program"], tasks["data_worker-1"]["tf_config"]) == (program, None)
    assert {task["env"]["ORCH_DATA_SERVICE"] for task in tasks.values()} == {"grpc://127.0.0.1:<port of dispatcher-0>"}
    assert planned(orch, "hello.py", "--strategy", "none", env={"ORCH_DATA_WORKERS": "1"}).keys() == {
        "worker-0",
        "dispatcher-0",
        "data_worker-0",
    }


DUMPS = """
import json, os
with open(os.environ["ORCH_TASK"] + ".env", "w") as file:
    json.dump(dict(os.environ), file)
"""


def test_threads_set_both_pools_unless_the_spec_names_one(orch: Orch) -> None:
    both = {"TF_NUM_INTRAOP_THREADS": "2", "OMP_NUM_THREADS": "2"}
    assert both.items() <= planned(orch, "hello.py", "--threads", "2")["worker-0"]["env"].items()
    named = planned(orch, "hello.py", "--threads", "2", "--env", "OMP_NUM_THREADS=3")["worker-0"]["env"]
    assert (named["TF_NUM_INTRAOP_THREADS"], named["OMP_NUM_THREADS"]) == ("2", "3")


@pytest.mark.parametrize(
    "words", [("-n", "2", "--env", "no_proxy=a,b"), ("--strategy", "none", "--memory-growth")], ids=["cluster", "lone"]
)
def test_the_environment_of_a_plan_is_the_one_that_tasks_get(orch: Orch, script: Script, tmp_path: Path, words: tuple[str, ...]) -> None:
    script(DUMPS, "dumps.py")
    ours = {"OMP_NUM_THREADS": "7", "TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_CONFIG": "{}", "no_grpc_proxy": ""}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:1])  # as under taskset, or in a container
    try:
        tasks = planned(orch, "dumps.py", *words, env=ours)
        orch("up", "dumps.py", *words, env=ours, check=0)
    finally:
        os.sched_setaffinity(0, cores)
    for name, task in tasks.items():
        found = json.loads((tmp_path / f"{name}.env").read_text())
        assert {key: found.get(key) for key, value in task["env"].items() if "<" not in value} == {
            key: value for key, value in task["env"].items() if "<" not in value
        }
        assert task["env"]["OMP_NUM_THREADS"] == "7"
        assert set(task["env"]) <= set(found)
        assert not {"TF_GRPC_REUSE_PORT", "no_grpc_proxy"} & set(found) - set(task["env"]) - set(ours)
        assert not set(task["unset"]) & set(found)


def test_a_dry_run_shows_what_would_be_executed_and_the_plan(orch: Orch, tmp_path: Path) -> None:
    text = orch("up", "hello.py", "-n", "2", "--dry-run", check=0).out
    plan = orch.in_process("plan", "hello.py", "-n", "2", check=0).out
    tasks, _, commands = text.partition("\n# ")
    assert set(tasks.splitlines()) < set(plan.splitlines())
    assert (tasks.count("TF_CONFIG="), tasks.count("ORCH_"), plan.count("ORCH_TASK=")) == (2, 0, 2)
    assert "worker/host/start_agent.py" in commands
    document = json.loads(orch("up", "hello.py", "-n", "2", "--dry-run", "--json", "-d", check=0).out)
    assert [task["task"] for task in document["tasks"]] == ["worker-0", "worker-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["hello.py"]


def test_a_plan_ends_with_what_an_engine_would_get(orch: Orch) -> None:
    words = ("hello.py", "-n", "2", "--backend", "slurm", "--nodes", "2", "--time", "2h")
    script = orch.in_process("plan", *words, check=0).out.partition("\n# job.sbatch\n")[2]
    assert script.startswith("#!/bin/sh\n#SBATCH --job-name=hello\n#SBATCH --nodes=2\n#SBATCH --time=2:00:00\n")
    assert json.loads(orch.in_process("plan", "--json", *words, check=0).out)["request"] == {"job.sbatch": script}


def test_a_plan_is_refused_as_a_run_is(orch: Orch) -> None:
    assert orch.in_process("plan", "hello.py", "-n", "0", check=2).err == orch.in_process("up", "hello.py", "-n", "0", check=2).err
    assert "nothing to run" in orch.in_process("plan", check=2).err
    for words in (["plan"], ["up"], ["up", "--dry-run"]):
        done = orch(*words, "helo.py", check=2)
        assert done.err.startswith("error: the script 'helo.py' cannot be read in "), done.err
        assert (done.out, done.err.endswith("No such file or directory; did you mean 'hello.py'?\n")) == ("", True)
    assert "hostA" in orch.in_process("plan", "helo.py", "-H", "hostA:2", check=0).out, "another host may have the script"


# --- init ---------------------------------------------------------------------------------------


def test_init_writes_a_file_that_is_valid_and_says_what_is_next(orch: Orch, tmp_path: Path) -> None:
    done = orch("init", check=0)
    assert "wrote orch.yaml" in done.out
    text = (tmp_path / "orch.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), json_schema())
    (tmp_path / "train.py").touch()
    assert "worker-0" in planned(orch)
    assert len(text.splitlines()) <= 40
    text = text.replace("#backend: {type", "#other: {type")  # one of the three places
    live = "\n".join(line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines())
    assert set(yaml.safe_load(live)) >= {"name", "strategy", "script", "tasks", "timeouts", "backend"}


def test_init_writes_every_key_and_names_the_script_that_is_there(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/digits.py").touch()
    orch.in_process("init", "project/orch.yaml", check=0)
    assert "\nscript: digits.py\n" in (tmp_path / "project/orch.yaml").read_text()
    orch.in_process("init", "all.yaml", "--all", check=0)
    text = (tmp_path / "all.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), json_schema())
    assert all(re.search(rf"^#?{key}:", text, re.MULTILINE) for key in json_schema()["properties"] if not root().keys[key].is_own)


def test_init_leaves_a_file_alone_that_exists(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("mine\n")
    assert "orch.yaml exists already" in orch.in_process("init", check=2).err
    assert (tmp_path / "orch.yaml").read_text() == "mine\n"
    orch.in_process("init", "other.yaml", check=0)
    (tmp_path / "train.py").touch()
    assert "worker-0" in planned(orch, "-f", "other.yaml")


@pytest.mark.parametrize("place", ["none/orch.yaml", "/proc/orch.yaml", "orch.yaml/x"])
def test_init_says_why_it_cannot_write(orch: Orch, tmp_path: Path, place: str) -> None:
    (tmp_path / "orch.yaml").write_text("mine\n")
    done = orch.in_process("init", place, check=2)
    assert done.err.startswith(f"error: {place} cannot be written: ")


def test_of_hosts_that_were_not_asked_no_number_is_said(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert "compute threads" not in orch("plan", "train.py", "-H", "hostA:2,hostB:2", check=0).err
    assert "compute threads" in orch("plan", "train.py", "-n", "2", check=0).err
