"""Device settings from the command line to the tasks; and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Orch
from worker.machine.cpu_cores import cores_of

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def show(script: Callable[..., Path]) -> Path:
    text = "import json, os\njson.dump(dict(os.environ), open(os.environ['ORCH_TASK'] + '.json', 'w'))\n"
    return script(text, "show.py")


def planned(orch: Orch, *words: str, **options: Any) -> dict[str, Any]:
    found = json.loads(orch("plan", "--json", "show.py", *words, check=0, **options).out)
    return {task["task"]: task for task in found["tasks"]}


def test_every_flag_has_its_setting(orch: Orch) -> None:
    flags = ("--gpus", "2", "--memory-growth", "--cpus", "3", "--log-placement", "--set", "defaults.devices.soft_placement=false")
    task = planned(orch, *flags)["worker-0"]
    assert task["devices"] == {"memory_growth": True, "cpus": 3, "log_placement": True, "soft_placement": False}
    assert task["env"]["CUDA_VISIBLE_DEVICES"] == "<2 of the GPUs of local>"
    task = planned(
        orch,
        "--gpus",
        "GPU:1,0",
        "--set",
        "defaults.devices.share_gpus=true",
        "--set",
        "defaults.devices.logical_gpus=1024,2G",
        "--set",
        "defaults.devices.soft_placement=true",
    )["worker-0"]
    assert task["devices"] == {"logical_gpus": [1024, 2048], "soft_placement": True}
    assert task["env"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    task = planned(orch, "--gpus", "auto", env={"ORCH_GPUS": "3", "ORCH_GPU_MEMORY": "4G", "ORCH_LOG_PLACEMENT": "off"})["worker-0"]
    assert task["devices"] == {"memory_limit_mb": 4096, "log_placement": False}
    assert "CUDA_VISIBLE_DEVICES" not in task["env"]


def test_the_runtimes_own_settings_have_flags_and_variables_as_well(orch: Orch, tmp_path: Path) -> None:
    task = planned(
        orch,
        "--threads",
        "3",
        "--set",
        "defaults.devices.threads.inter=2",
        "--set",
        "defaults.devices.xla=true",
        "--set",
        "defaults.devices.tf32=false",
        "--set",
        "defaults.devices.determinism=true",
    )["worker-0"]
    assert task["devices"] == {"threads": {"intra": 3, "inter": 2}, "xla": True, "tf32": False, "determinism": True}
    assert (task["env"]["TF_NUM_INTRAOP_THREADS"], task["env"]["TF_NUM_INTEROP_THREADS"]) == ("3", "2")
    told = {"ORCH_INTER_THREADS": "4", "ORCH_XLA": "off", "ORCH_TF32": "yes", "ORCH_DETERMINISM": "0"}
    (tmp_path / "orch.yaml").write_text("defaults: {devices: {threads: {intra: 1, inter: 1}, xla: true}}")
    task = planned(orch, "--threads", "5", env=told)["worker-0"]
    assert task["devices"] == {"threads": {"intra": 5, "inter": 4}, "xla": False, "tf32": True, "determinism": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2", "--threads: must be a whole number, not '1,2'"),
        ("0", "--threads: must be at least 1, not 0"),
    ],
)
def test_threads_that_cannot_be_are_refused_by_the_flags_name(orch: Orch, text: str, expected: str) -> None:
    assert expected in orch("plan", "show.py", "--threads", text, check=2).err


def test_a_single_task_has_devices_of_its_own(orch: Orch) -> None:
    found = planned(orch, "-n", "2", "--cpus", "2", "--set", "tasks.worker.overrides.1.devices.cpus=4")
    assert [task["devices"]["cpus"] for task in found.values()] == [2, 4]


def test_the_text_shows_what_is_set_inside_the_task(orch: Orch) -> None:
    done = orch("plan", "show.py", "--cpus", "2", check=0)
    assert "  devices.cpus: 2\n" in done.out
    assert "orch: devices.cpus: multi_worker_mirrored trains on the first of the 2 logical CPU devices of a task" in done.err
    assert orch("plan", "show.py", "--cpus", "2", "--json", check=0).err == ""


def test_gpus_that_are_not_there_are_refused_before_anything_starts(orch: Orch, tmp_path: Path) -> None:
    done = orch("up", "show.py", "-n", "2", "--gpus", "[0]", check=2, env=NO_GPU)
    assert done.err.splitlines()[-1].startswith("error: worker-0..1 ask for GPU 0; host local has no GPU: leave out --gpus ")
    assert not list(tmp_path.glob("*.json"))
    assert not list((tmp_path / ".orch").glob("runs/*"))


def test_on_a_host_without_gpus_nothing_is_said_of_them_and_the_threads_in_one_line(orch: Orch, tmp_path: Path) -> None:
    done = orch("up", "show.py", "-n", "2", "--gpus", "auto", "--memory-growth", check=0, env=NO_GPU)
    assert "GPU" not in done.err
    (line,) = (line for line in done.err.splitlines() if "threads" in line)
    assert line.startswith("orch: compute threads: ")
    seen = json.loads((tmp_path / "worker-1.json").read_text())
    assert line.startswith(f"orch: compute threads: {seen['TF_NUM_INTRAOP_THREADS']} for each task (")
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert "threads" not in orch("up", "show.py", check=0, env=NO_GPU).err


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="NOT TESTED: this platform ties nobody to cores")
@pytest.mark.parametrize("preload", ["[]", "[decimal]"], ids=["executed", "forked"])
def test_each_task_is_tied_to_its_share_of_the_cores(orch: Orch, tmp_path: Path, script: Callable[..., Path], preload: str) -> None:
    script("import json, os\njson.dump(sorted(os.sched_getaffinity(0)), open(os.environ['ORCH_TASK'] + '.json', 'w'))\n", "cores.py")
    done = orch("up", "cores.py", "-n", "2", "--set", "defaults.devices.affinity=true", "--set", f"preload={preload}", check=0)
    found = [json.loads((tmp_path / f"worker-{index}.json").read_text()) for index in (0, 1)]
    assert found == [cores_of(0, 2), cores_of(1, 2)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not {*found[0]} & {*found[1]}
        assert {*found[0], *found[1]} == os.sched_getaffinity(0)
    assert "tied to cores of its own" in done.err
    orch("up", "cores.py", "-n", "2", "--set", "tasks.worker.overrides={1: {devices: {affinity: true}}}", check=0)
    found = [json.loads((tmp_path / f"worker-{index}.json").read_text()) for index in (0, 1)]
    assert found == [sorted(os.sched_getaffinity(0)), cores_of(1, 2)]


def test_threads_that_are_too_few_for_a_parameter_server_are_the_users_own_and_said_in_a_line(
    orch: Orch, tmp_path: Path, script: Callable[..., Path]
) -> None:
    tasks = ("chief-0", "worker-0", "worker-1", "ps-0")
    script(f"""
        import os, pathlib, time
        pathlib.Path(os.environ["ORCH_TASK"]).write_text(os.environ["TF_NUM_INTEROP_THREADS"])
        while os.environ["ORCH_TASK"] != "chief-0" or not all(map(os.path.exists, {tasks})):
            time.sleep(0.01)
    """)

    def run(*words: str, **env: str) -> tuple[list[str], list[str]]:
        for task in tasks:
            (tmp_path / task).unlink(missing_ok=True)
        done = orch("up", "script.py", "--ps", "1", "-n", "2", *words, env=env, check=0)
        found = [(tmp_path / task).read_text() for task in ("chief-0", "worker-1", "ps-0")]
        return [line for line in done.err.splitlines() if "INTEROP" in line], found

    told, given = run()
    assert told == []
    assert min(map(int, given)) >= 4
    known = f"is known to hang (unset, it would be {given[0]}; defaults.devices.threads.inter sets it, too)"
    every = f"orch: host local: chief-0, worker-0, worker-1, ps-0: TF_NUM_INTEROP_THREADS is 1, with which ParameterServerStrategy {known}"
    assert run("--threads", "1", "--set", "defaults.devices.threads.inter=1") == ([every], ["1"] * 3)
    assert run(TF_NUM_INTEROP_THREADS="1") == ([every], ["1"] * 3)
    one = f"orch: host local: worker-0, worker-1: TF_NUM_INTEROP_THREADS is 1, with which ParameterServerStrategy {known}"
    assert run("--set", "tasks.worker.env.TF_NUM_INTEROP_THREADS='1'") == ([one], [given[0], "1", given[0]])
    assert run("--threads", "1", "--set", "defaults.devices.threads.inter=3") == ([], ["3"] * 3)


def test_a_program_that_is_not_python_is_tied_too(orch: Orch) -> None:
    done = orch(
        "up",
        "--no-python",
        "grep",
        "--set",
        "defaults.devices.affinity=true",
        "-n",
        "2",
        "--",
        "Cpus_allowed_list",
        "/proc/self/status",
        check=0,
    )
    shown = dict(re.findall(r"(worker-\d) \| Cpus_allowed_list:\s+(\S+)", done.out))
    cores = [cores_of(index, 2) or [] for index in (0, 1)]
    assert [shown[f"worker-{index}"] for index in (0, 1) if len(cores[index]) == 1] == [str(one[0]) for one in cores if len(one) == 1]
    assert len(shown) == 2


def test_hiding_all_gpus_and_determinism_are_variables(orch: Orch, tmp_path: Path) -> None:
    orch("up", "show.py", "--gpus", "0", "--set", "defaults.devices.determinism=true", check=0)
    seen = json.loads((tmp_path / "worker-0.json").read_text())
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["TF_DETERMINISTIC_OPS"]) == ("-1", "1")


HOST_WITH_GPUS = """
import importlib, os, sys, time
here = os.path.dirname(os.path.abspath(sys.argv[0]))
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import start_agent
start_agent.load()
rooms = ("facts.gpu_driver", "agent", "facts.gpu_locks")
driver, agent, locks = (importlib.import_module(f"_orch_worker.host.{name}") for name in rooms)
locks.PLACE = here  # the GPUs of this test are nobody else's
driver.is_installed = lambda: True
driver.command = lambda: ["printf", "550.54.15, %s, 1000, Disabled, Double\\n", *(f"{index}, GPU-{index}{index}" for index in range(4))]
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
    assert done.err.splitlines()[-1] == "error: worker-1 asks for GPU 2; host local has GPUs 0, 1"
    assert not list(tmp_path.glob("*.json"))


# --- several runs -------------------------------------------------------------------------------

HOLD = """
import os, pathlib, time
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""
SEES = re.compile(r"sees (\S+)")
MEET = """
looked = locks.GpuLocks.holders
def meet(self):
    found = looked(self)
    open(f"looked-{os.getpid()}", "w").close()
    while len([name for name in os.listdir() if name.startswith("looked-")]) < 2:
        time.sleep(0.01)
    return found
locks.GpuLocks.holders = meet
"""
"""Every agent looks at what others have before any of them claims something."""


def test_runs_side_by_side_do_not_have_the_same_gpus(
    orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path, script: Callable[..., Path]
) -> None:
    script(HOLD, "hold.py")
    words = ("--python", python_of_a_host_with_gpus)
    shell = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    first = orch.start("up", "hold.py", "--name", "first", "--gpus", "1", *words, env=shell)
    assert first.wait_for(SEES)[1] == "0"
    (tmp_path / "tmp").mkdir()
    second = orch.start("up", "hold.py", "--name", "second", "--gpus", "1", *words, env={"TMPDIR": str(tmp_path / "tmp")})
    assert second.wait_for(SEES)[1] == "GPU-11"  # by whatever name
    third = orch.start("up", "hold.py", "--name", "third", *words, env=shell)
    assert third.wait_for(SEES)[1] == "2"
    held = [
        r"run first-\S+ \(process \d+\) has GPU 0",
        r"run second-\S+ \(process \d+\) has GPU 1",
        r"run third-\S+ \(process \d+\) has GPU 2",
    ]
    ways = r"name others with --gpus, or let all of them share \(defaults.devices.share_gpus: true\)"
    assert re.search(f"host local: {', '.join(held[:2])}; this run divides the other GPUs", third.err)
    refused = orch("up", "hold.py", "--gpus", "2", *words, check=125).err.splitlines()[-1]
    assert re.fullmatch(f"error: worker-0 asks for 2 GPUs; host local has GPUs 0, 1, 2, 3; {', '.join(held)}: {ways}", refused)
    refused = orch("up", "hold.py", "--gpus", "[1]", *words, check=125).err.splitlines()[-1]
    assert re.fullmatch(f"error: worker-0 asks for GPU 1; host local has GPUs 0, 1, 2, 3; {held[1]}: {ways}", refused)
    (tmp_path / "go").touch()
    for running in (first, second, third):
        running.wait(check=0)
    assert SEES.search(orch("up", "hold.py", *words, check=0).out)[1] == "GPU-00,GPU-11,GPU-22,GPU-33"  # type: ignore[index]


def test_a_run_that_was_killed_has_no_gpus_any_more(
    orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path, script: Callable[..., Path]
) -> None:
    script(HOLD, "hold.py")
    running = orch.start("up", "hold.py", "--python", python_of_a_host_with_gpus)
    running.wait_for(SEES)
    (events,) = (tmp_path / ".orch").glob("runs/*/events.jsonl")
    agent = next(json.loads(line)["pid"] for line in events.read_text().splitlines() if '"host_ready"' in line)
    os.kill(agent, signal.SIGKILL)
    running.wait()
    (tmp_path / "go").touch()
    done = orch("up", "hold.py", "--python", python_of_a_host_with_gpus, check=0)
    assert SEES.search(done.out)[1] == "GPU-00,GPU-11,GPU-22,GPU-33"  # type: ignore[index]


def test_runs_that_share_have_the_same_gpus(
    orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path, script: Callable[..., Path]
) -> None:
    script(HOLD, "hold.py")
    words = ("--gpus", "[0]", "--python", python_of_a_host_with_gpus)
    both = [orch.start("up", "hold.py", "--set", "defaults.devices.share_gpus=true", *words) for _ in range(2)]
    assert [running.wait_for(SEES)[1] for running in both] == ["GPU-00"] * 2
    assert "asks for GPU 0; host local has GPUs 0, 1, 2, 3; run hold-" in orch("up", "hold.py", *words, check=125).err
    (tmp_path / "go").touch()
    for running in both:
        running.wait(check=0)


def test_two_runs_that_look_at_the_same_moment_both_get_a_gpu(
    orch: Orch, tmp_path: Path, python_of_a_host_with_gpus: Path, script: Callable[..., Path]
) -> None:
    script(HOLD, "hold.py")
    agent = tmp_path / "agent.txt"
    agent.write_text(agent.read_text().replace("os._exit(", MEET + "os._exit(", 1))
    both = [orch.start("up", "hold.py", "--gpus", "1", "--python", python_of_a_host_with_gpus) for _ in range(2)]
    assert {running.wait_for(SEES)[1] for running in both} == {"GPU-00", "GPU-11"}
    (tmp_path / "go").touch()
    for running in both:
        running.wait(check=0)
