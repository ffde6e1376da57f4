"""Device settings from the command line to the tasks; and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Orch
from worker.host import look

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def show(script: Callable[..., Path]) -> Path:
    text = "import json, os\njson.dump(dict(os.environ), open(os.environ['ORCH_TASK'] + '.json', 'w'))\n"
    return script(text, "show.py")


def planned(orch: Orch, *words: str, **options: Any) -> dict[str, Any]:
    found = json.loads(orch("plan", "--json", "show.py", *words, check=0, **options).out)
    return {task["task"]: task for task in found["tasks"]}


def test_every_flag_has_its_setting(orch: Orch) -> None:
    flags = ("--gpus", "2", "--memory-growth", "--cpus", "3", "--log-placement", "--no-soft-placement")
    task = planned(orch, *flags)["worker-0"]
    assert task["devices"] == {"memory_growth": True, "cpus": 3, "log_placement": True, "soft_placement": False}
    assert task["env"]["CUDA_VISIBLE_DEVICES"] == "<2 of the GPUs of local>"
    task = planned(orch, "--gpus", "GPU:1,0", "--share-gpus", "--logical-gpus", "1024,2048", "--soft-placement")["worker-0"]
    assert task["devices"] == {"logical_gpus": [1024, 2048], "soft_placement": True}
    assert task["env"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    task = planned(orch, "--gpus", "auto", env={"ORCH_GPUS": "3", "ORCH_GPU_MEMORY": "4096", "ORCH_LOG_PLACEMENT": "off"})["worker-0"]
    assert task["devices"] == {"memory_limit_mb": 4096, "log_placement": False}
    assert "CUDA_VISIBLE_DEVICES" not in task["env"]


def test_the_runtimes_own_settings_have_flags_and_variables_as_well(orch: Orch, tmp_path: Path) -> None:
    task = planned(orch, "--threads", "3,2", "--xla", "--no-tf32", "--determinism")["worker-0"]
    assert task["devices"] == {"intra_op_threads": 3, "inter_op_threads": 2, "xla": True, "tf32": False, "determinism": True}
    assert (task["env"]["TF_NUM_INTRAOP_THREADS"], task["env"]["TF_NUM_INTEROP_THREADS"]) == ("3", "2")
    told = {"ORCH_THREADS": ",4", "ORCH_XLA": "off", "ORCH_NO_TF32": "no", "ORCH_DETERMINISM": "0"}
    (tmp_path / "orch.yaml").write_text("defaults: {devices: {threads: {intra: 1, inter: 1}, xla: true}}")
    task = planned(orch, "--threads", "5", env=told)["worker-0"]
    assert task["devices"] == {"intra_op_threads": 5, "inter_op_threads": 4, "xla": False, "tf32": True, "determinism": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3", "--threads: '1,2,3' has 3 parts (write INTRA[,INTER])"),
        ("0,many", "--threads: defaults.devices.threads.intra: must be at least 1, not 0"),
    ],
)
def test_threads_that_cannot_be_are_refused_by_the_flags_name(orch: Orch, text: str, expected: str) -> None:
    assert expected in orch("plan", "show.py", "--threads", text, check=2).err


def test_a_single_task_has_devices_of_its_own(orch: Orch) -> None:
    found = planned(orch, "-n", "2", "--cpus", "2", "--set", "tasks.worker.overrides.1.devices.cpus=4")
    assert [task["devices"]["cpus"] for task in found.values()] == [2, 4]


def test_the_text_shows_what_is_set_inside_the_task(orch: Orch) -> None:
    assert "  devices.cpus: 2\n" in orch("plan", "show.py", "--cpus", "2", check=0).out


def test_gpus_that_are_not_there_are_refused_before_anything_starts(orch: Orch, tmp_path: Path) -> None:
    done = orch("up", "show.py", "-n", "2", "--gpus", "[0]", check=2, env=NO_GPU)
    assert done.err.splitlines()[-1] == "Error: worker-0..1 ask for GPU 0; host local has no GPU"
    assert not list(tmp_path.glob("*.json"))
    assert not list((tmp_path / ".orch").glob("runs/*"))


def test_on_a_host_without_gpus_nothing_is_said_of_them_and_the_threads_in_one_line(orch: Orch, tmp_path: Path) -> None:
    done = orch("up", "show.py", "-n", "2", "--gpus", "auto", "--memory-growth", check=0, env=NO_GPU)
    assert "GPU" not in done.err
    (line,) = (line for line in done.err.splitlines() if "threads" in line)
    assert line.startswith("orch: threads: ")
    seen = json.loads((tmp_path / "worker-1.json").read_text())
    assert line.startswith(f"orch: threads: {seen['TF_NUM_INTRAOP_THREADS']} for each task (")
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert "threads" not in orch("up", "show.py", check=0, env=NO_GPU).err


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="NOT TESTED: this platform ties nobody to cores")
@pytest.mark.parametrize("preload", ["[]", "[decimal]"], ids=["executed", "forked"])
def test_each_task_is_tied_to_its_share_of_the_cores(orch: Orch, tmp_path: Path, script: Callable[..., Path], preload: str) -> None:
    script("import json, os\njson.dump(sorted(os.sched_getaffinity(0)), open(os.environ['ORCH_TASK'] + '.json', 'w'))\n", "cores.py")
    done = orch("up", "cores.py", "-n", "2", "--affinity", "--set", f"preload={preload}", check=0)
    found = [json.loads((tmp_path / f"worker-{index}.json").read_text()) for index in (0, 1)]
    assert found == [look.cores_of(0, 2), look.cores_of(1, 2)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not {*found[0]} & {*found[1]}
        assert {*found[0], *found[1]} == os.sched_getaffinity(0)
    assert "tied to cores of its own" in done.err
    orch("up", "cores.py", "-n", "2", "--set", "tasks.worker.overrides={1: {devices: {affinity: true}}}", check=0)
    found = [json.loads((tmp_path / f"worker-{index}.json").read_text()) for index in (0, 1)]
    assert found == [sorted(os.sched_getaffinity(0)), look.cores_of(1, 2)]


def test_a_program_that_is_not_python_is_tied_too(orch: Orch) -> None:
    done = orch("up", "--no-python", "grep", "--affinity", "-n", "2", "--", "Cpus_allowed_list", "/proc/self/status", check=0)
    shown = dict(re.findall(r"(worker-\d) \| Cpus_allowed_list:\s+(\S+)", done.out))
    cores = [look.cores_of(index, 2) or [] for index in (0, 1)]
    assert [shown[f"worker-{index}"] for index in (0, 1) if len(cores[index]) == 1] == [str(one[0]) for one in cores if len(one) == 1]
    assert len(shown) == 2


def test_hiding_all_gpus_and_determinism_are_variables(orch: Orch, tmp_path: Path) -> None:
    orch("up", "show.py", "--gpus", "0", "--set", "defaults.devices.determinism=true", check=0)
    seen = json.loads((tmp_path / "worker-0.json").read_text())
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["TF_DETERMINISTIC_OPS"]) == ("-1", "1")


HOST_WITH_GPUS = """
import importlib, os, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import start
start.load()
names = ("contract", "host.gpus", "host.look", "host.agent")
contract, gpus, look, agent = (importlib.import_module(f"_orch_worker.{name}") for name in names)
found = tuple(contract.Gpu(index, f"GPU-{index}{index}", "Double", 1000, f"GPU-{index}{index}") for index in range(4))
look.find_gpus = lambda env: gpus.visible(found, env.get("CUDA_VISIBLE_DEVICES"))
os._exit(agent.main())
"""


@pytest.fixture
def python_of_a_host_with_gpus(tmp_path: Path) -> Path:
    """An interpreter whose agent finds four GPUs: the driver is a double, everything else is real."""
    (tmp_path / "agent.txt").write_text(HOST_WITH_GPUS)
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\n[ "$1" = -I ] && shift\nexec {shlex.quote(sys.executable)} -I agent.txt "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("words", "shell", "expected"),
    [
        ((), None, ["GPU-00,GPU-11", "GPU-22,GPU-33"]),
        ((), "3,GPU-0", ["3", "GPU-0"]),
        (("--gpus", "1", "--set", "tasks.worker.overrides.0.devices.gpus=[GPU:2]"), None, ["GPU-22", "GPU-00"]),
        (("--gpus", "0"), None, ["-1", "-1"]),
    ],
)
def test_a_hosts_gpus_reach_its_tasks(
    orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path, words: tuple[str, ...], shell: str | None, expected: list[str]
) -> None:
    orch("up", "show.py", "-n", "2", "--python", python_of_a_host_with_gpus, *words, check=0, env={"CUDA_VISIBLE_DEVICES": shell})
    seen = [json.loads((tmp_path / f"worker-{index}.json").read_text())["CUDA_VISIBLE_DEVICES"] for index in range(2)]
    assert seen == expected


def test_a_gpu_that_the_shell_hides_cannot_be_asked_for(orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path) -> None:
    words = ("-n", "2", "--python", python_of_a_host_with_gpus, "--gpus", "1", "--set", "tasks.worker.overrides.1.devices.gpus=[2]")
    done = orch("up", "show.py", *words, check=2, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.err.splitlines()[-1] == "Error: worker-1 asks for GPU 2; host local has GPUs 0, 1"
    assert not list(tmp_path.glob("*.json"))
