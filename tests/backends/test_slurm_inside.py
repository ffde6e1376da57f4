"""orch inside of an allocation of a real Slurm: salloc, and a batch script of the user's own. No TensorFlow."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Completed, Orch, Running
from tests.live import LiveRun, wait_until_gone, wait_until_ready, write_script
from tests.slurm_bed import GPUS, SlurmBed
from tests.slurm_runs import SLEEP, forget_agents

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

VARIABLES = """
found = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "CUDA"))}
tell(f"{TASK}.variables", json.dumps({**found, "node": os.uname().nodename}))
"""


def start(orch: Orch, *words: str, nodes: str = "-N3", **more: Any) -> Running:
    return orch.start("up", "script.py", *words, by=("salloc", "--quiet", *nodes.split()), **more)


def up(orch: Orch, *words: str, nodes: str = "-N3", check: int = 0, **more: Any) -> Completed:
    return start(orch, *words, nodes=nodes, **more).wait(check=check)


def told(directory: Path) -> dict[str, dict[str, str]]:
    return {path.name.partition(".")[0]: json.loads(path.read_text()) for path in sorted(directory.glob("*.variables"))}


def test_the_nodes_of_an_allocation_are_used_without_a_word_about_them(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, f"import json\nserver = listen()\n{VARIABLES}")
    done = up(orch, env={"SLURM_CPU_BIND": "none", "SRUN_CPUS_PER_TASK": "1"})
    first = done.err.splitlines()[0]
    said = r"orch: the allocation of Slurm's job \d+ is used: 3 nodes \(hostA, hostB, hostC\); --backend local uses this machine alone"
    assert re.fullmatch(said, first), done
    tasks = told(tmp_path)
    assert [variables["node"] for variables in tasks.values()] == ["hostA", "hostB", "hostC"]
    assert [variables["SLURMD_NODENAME"] for variables in tasks.values()] == ["hostA", "hostB", "hostC"]
    of_a_step = [name for variables in tasks.values() for name in variables if re.match(r"SLURM_(STEP|PROCID|LOCALID|NTASKS|NPROCS)", name)]
    assert not of_a_step  # a task would take itself for the only one
    assert {variables["SLURM_JOB_NODELIST"] for variables in tasks.values()} == {"hostA,hostB,hostC"}
    assert {path.name for path in run.path.glob("request/*")} == {f"agent-{name}.txt" for name in slurm.states()}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("-N2 --gpus=3", ["0", "1", "0"]),
        ("-N2 -n3 --gpus-per-task=1", ["0", "1", "0"]),
        ("-N2 --gres=gpu:1", ["0", "0"]),
        ("-N2 --exclusive -n2", ["0,1", "0,1"]),
    ],
)
def test_the_gpus_of_the_job_on_a_node_are_shared_out_among_its_tasks(
    orch: Orch, slurm: SlurmBed, tmp_path: Path, asked: str, found: list[str]
) -> None:
    """Where nobody has asked for task slots, each GPU is one. A step without options would get none, one, or be refused. nvidia-smi is a
    stand-in, which shows all GPUs of a node, as the real one does without cgroups."""
    write_script(tmp_path, f"import json\n{VARIABLES}")
    (tmp_path / "bin").mkdir()
    line = 'echo "550.54.15, $index, GPU-$(hostname)-$index, 81559, Disabled, NVIDIA H100"'
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\nfor index in $(seq 0 {GPUS - 1}); do {line}; done\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    done = up(orch, nodes=asked, env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in told(tmp_path).values()] == found, done


def test_an_allocation_of_several_kinds_of_nodes_is_refused(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    write_script(tmp_path, "")
    done = start(orch, nodes="-N1 : -N1").wait(check=2)
    assert re.search(
        r"Slurm's job \d+ is a heterogeneous one \(SLURM_HET_SIZE=2\), which orch cannot use\n       fix: ask for one kind", done.err
    ), done


def test_backend_local_still_means_this_machine(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    write_script(tmp_path, f"import json\n{VARIABLES}")
    done = up(orch, "--backend", "local", nodes="-N2")
    assert "allocation" not in done.err
    assert [variables["node"] for variables in told(tmp_path).values()] == [os.uname().nodename]


def test_a_batch_script_of_the_users_own(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    """Its options for steps and its --export=NONE are for srun, and not for the tasks."""
    write_script(tmp_path, f"import json\n{VARIABLES}")
    (tmp_path / "job.sh").write_text(
        f"#!/bin/sh\nexport PYTHONPATH='{os.environ['PYTHONPATH']}' SLURM_CONF='{slurm.config}' OWN=1\n"
        f"export ORCH_TEST_ID={os.environ['ORCH_TEST_ID']}\nexec {sys.executable} -m orchestrator up script.py\n"
    )
    options = ("-N2", "--ntasks-per-node=2", "--mem-per-cpu=100", "--export=NONE", f"--chdir={tmp_path}", "-o", "job.out")
    slurm.run("sbatch", *options, str(tmp_path / "job.sh"))
    slurm.wait_idle()
    tasks = told(tmp_path)
    assert [variables["node"] for variables in tasks.values()] == ["hostA", "hostA", "hostB", "hostB"], (tmp_path / "job.out").read_text()
    assert "cluster of 4" in (tmp_path / "job.out").read_text() or "succeeded" in (tmp_path / "job.out").read_text()


def test_two_runs_share_the_nodes_of_one_allocation(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    """Neither waits for the other's steps, and no port is used twice."""
    write_script(tmp_path, "server = listen()\nwait_for('done')\n")
    both = f"import subprocess, sys; a, b = [subprocess.Popen([{sys.executable!r}, '-m', 'orchestrator', 'up', '-q', 'script.py', "
    both += "'--home', home]) for home in 'ab']; sys.exit(a.wait() or b.wait())"
    process = subprocess.Popen(["salloc", "--quiet", "-N2", sys.executable, "-c", both], cwd=tmp_path)
    for home in "ab":
        LiveRun(tmp_path, home).event("task_up", task="worker-1")
    (tmp_path / "done").write_text("")
    assert process.wait(200) == 0


def test_two_jobs_share_their_nodes(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    told = "print(os.environ['CUDA_VISIBLE_DEVICES'], server.getsockname()[1], flush=True)"
    write_script(tmp_path, f"server = listen()\n{told}\nwait_for('done')\n")
    both = [start(orch, "-q", "--home", home, nodes="-N2 -n2 --gres=gpu:1") for home in "ab"]
    runs = [LiveRun(tmp_path, home) for home in "ab"]
    for live in runs:
        live.event("task_up", task="worker-1")
    (tmp_path / "done").write_text("")
    for running in both:
        running.wait(check=0)
    gpus, ports = zip(*(live.log("worker-0").split() for live in runs), strict=True)
    assert {*gpus} == {b"0", b"1"}
    assert len({*ports}) == 2


def test_a_run_ends_before_the_time_of_its_allocation_is_over(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    """The tasks have the time to save: half of the limit, where that is less than was asked for."""
    write_script(tmp_path, "ready()\nsignal.signal(signal.SIGTERM, lambda *_: (tell(f'{TASK}.saved'), os._exit(42)))\nsleep()")
    sooner = 'scontrol update jobid="$SLURM_JOB_ID" endtime=now+30seconds && exec "$@"'  # than a minute, Slurm's smallest limit
    by = ("salloc", "--quiet", "-N2", "-t1", "sh", "-c", sooner, "sh")
    done = orch.start("up", "script.py", "--set", "timeouts.save_before_s=55", by=by).wait(check=124)
    assert "the time of its allocation is nearly over" in done.err, done
    assert (tmp_path / "worker-0.saved").exists()
    assert (tmp_path / "worker-1.saved").exists()


def test_nothing_survives_a_controller_that_is_killed(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, SLEEP)
    running = start(orch)
    processes = wait_until_ready(tmp_path, *(f"worker-{index}" for index in range(3)))
    os.kill(run.controller().pid, signal.SIGKILL)
    wait_until_gone(processes.values())
    running.wait()


def test_a_job_that_is_cancelled_ends_the_run_with_its_cause(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    """Slurm tells the agents, and not the controller, which is no part of a step."""
    write_script(tmp_path, SLEEP)
    running = start(orch)
    processes = wait_until_ready(tmp_path, *(f"worker-{index}" for index in range(3)))
    slurm.run("scancel", *slurm.jobs())
    wait_until_gone(processes.values())
    running.wait()
    assert run.result()["exit_code"] == 143
    assert run.cause()["what"].endswith("the agent received SIGTERM: it is taken away")


def test_a_node_that_dies_is_named(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    """Long before Slurm gives the node up, which takes minutes on most clusters."""
    write_script(tmp_path, SLEEP)
    running = start(orch, "--set", "backend.lost_after_s=4", "--set", "timeouts.grace_s=1")
    wait_until_ready(tmp_path, *(f"worker-{index}" for index in range(3)))
    slurm.kill_node("hostB")
    done = running.wait()
    assert done.code == 125, done
    assert "host hostB" in run.cause()["what"], done
    forget_agents()


@pytest.mark.slow
def test_output_that_a_node_could_not_send_is_counted(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    """Slurm gives a node up whose slurmd stays away (SlurmdTimeout), and ends its step. The task has ended well before that, and a part of
    its output is still on its way over a slow link.
    """
    size = 60_000_000
    write_script(tmp_path, f"ready()\nwait_for('go')\nsys.stdout.write('x' * {size})\n")
    running = start(orch, nodes="--no-kill -N2")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    slurm.kill_slurmd("hostB")
    with slurm.bed["hostB"].slow_link(megabits=10):
        (tmp_path / "go").write_text("")
        done = running.wait(check=0)
    lost = size - len(run.log("worker-1"))
    assert 0 < lost < size
    assert len(run.log("worker-0")) == size
    (remark,) = run.result()["remarks"]
    assert remark.startswith(f"attempt-1/worker-1: the last {lost:,} bytes of its stdout did not come from host hostB: "), remark
    assert remark in " ".join(done.err.split())
    slurm.mend_daemons()  # a slurmd that is back kills what is left of the step: the agent, which believes for 20 s that it is awaited
    assert slurm.left_behind() == []
    forget_agents()


def test_an_allocation_that_has_ended_is_said_to_have(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    write_script(tmp_path, "")
    env = {"SLURM_JOB_ID": "4000000", "SLURM_JOB_NODELIST": "hostA", "SLURM_TASKS_PER_NODE": "1"}
    done = orch("up", "script.py", env=env, check=125)
    assert "Invalid job id specified\n       fix: the allocation has ended: make a new one" in done.err, done


def test_no_programs_of_slurm_is_one_message(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "")
    (tmp_path / "bin").mkdir()
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "PATH": str(tmp_path / "bin")}
    done = orch("up", "script.py", env=env, check=2)
    assert "Slurm's programs are not on PATH here: there is no srun" in done.err
