"""Trainings by the same command on every node. That of `srun` is in test_slurm.py, those of pods in test_kubernetes_jobs.py."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_join import CLEAN, STEP
from tests.backends.test_join_engines import by_mpiexec
from tests.bed import Bed
from tests.conftest import ROOT, Orch, Running
from tests.live import LiveRun, wait_until
from tests.real.test_preemption import GRACE, SLOW, named_step, wait_for_step
from tests.real.test_resume import LOOP, ORDER, Uninterrupted, check_each_once, latest, saved, steps_of, words
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import Place

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]

ALONE = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}


def start_both(orch: Orch, *words: str, **env: str) -> list[Running]:
    """A step of Slurm with two nodes, each with one process; both see this directory."""
    own = ({"SLURM_PROCID": str(node), "SLURM_NODEID": str(node)} for node in range(2))
    return [orch.start("up", *words, "--join", env={**CLEAN, **STEP, **ALONE, **each, **env}) for each in own]


@pytest.mark.usefixtures("warm_tensorflow")
def test_sigterm_on_a_node_saves_the_training_and_the_next_start_of_the_job_loses_no_step(
    orch: Orch, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    program = str(script(LOOP, "loop.py"))
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    pair = start_both(orch, program, *ORDER, *GRACE, **SLOW)
    wait_for_step(tmp_path, 7)
    pair[1].signal(signal.SIGTERM)
    first, second = (each.wait(check=42) for each in pair)
    step, ended = named_step(words(first)), latest(tmp_path)
    assert "the run has ended with exit code 42" in second.err
    pair = start_both(orch, program, *ORDER, *GRACE, SLURM_RESTART_COUNT="1")
    first, second = (each.wait(check=0) for each in pair)
    assert f"loop-1 continues at step {step} " in words(first)
    assert latest(tmp_path).run_id == ended.run_id, "the record is the same"
    assert saved(ended, "loop-1") == saved(whole, "loop-1")
    steps = steps_of(ended)
    assert steps == steps_of(whole)
    check_each_once(steps)


@pytest.mark.root
def test_a_batch_job_that_has_saved_itself_is_put_back_into_the_queue(
    orch: Orch, slurm: SlurmBed, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    program, job_script = str(script(LOOP, "loop.py")), tmp_path / "job.sh"
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    up = [sys.executable, "-m", "orchestrator", "up", program, "--join", "--requeue-code", "scontrol", *ORDER, *GRACE, "--env", "PACE=0.1"]
    options = f"--nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --output={tmp_path}/out --chdir={tmp_path}"
    job_script.write_text(f"#!/bin/sh\n#SBATCH {options}\nsrun --quiet --kill-on-bad-exit=0 {shlex.join(up)}\n")
    job = slurm.run("sbatch", "--parsable", str(job_script), env={"PYTHONPATH": str(ROOT)}).strip()
    wait_for_step(tmp_path, 7)
    slurm.run("scancel", "--signal=TERM", job)  # as before a time limit (`sbatch --signal`), or a preemption
    place = Place(orch, slurm, tmp_path, script="loop.py")
    place.start_again(job)
    wait_until(lambda: job not in slurm.jobs(), "end of the job", 300)
    said, ended = (tmp_path / "out").read_text(), latest(tmp_path)
    cancelled = slurm.run("sbatch", "--parsable", str(job_script), env={"PYTHONPATH": str(ROOT)}).strip()
    wait_for_step(tmp_path, 7, after=ended)
    slurm.run("scancel", cancelled)
    wait_until(lambda: cancelled not in slurm.jobs(), "end of the cancelled job", 300)
    assert (slurm.job(cancelled)["JobState"], slurm.job(cancelled)["Restarts"]) == ("CANCELLED", "0")
    assert f"loop-1 continues at step {named_step(' '.join(said.split()))} " in said
    assert slurm.job(job)["Restarts"] == "1"
    assert saved(ended, "loop-1") == saved(whole, "loop-1")
    check_each_once(steps_of(ended))


def test_parameter_servers_on_two_nodes(orch: Orch, tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "parameter_server.py")
    tasks = ("--strategy", "parameter_server", "--chief", "--ps", "1", "-n", "2")
    first, second = (each.wait(timeout=300, check=0) for each in start_both(orch, example, *tasks))
    assert "chief-0, worker-0..1, ps-0 on " in words(first)
    assert "test accuracy 0.9" in first.out
    assert "the run has ended with exit code 0" in second.err
    hosts = [event["host"] for event in LiveRun(tmp_path).events() if event["event"] == "template_ready"]
    assert len({*hosts}) == 2, hosts


@pytest.mark.root
@pytest.mark.parametrize("launcher", ["mpich", "openmpi"])
def test_mpiexec_starts_a_training_on_two_hosts_that_share_no_directory(orch: Orch, bed: Bed, tmp_path: Path, launcher: str) -> None:
    by, env = by_mpiexec(launcher, bed, tmp_path, each=1, own=launcher)
    example = str(ROOT / "examples" / "mwms_custom_loop.py")
    done = orch.start("up", example, "--join", by=by, env=env).wait(timeout=400, check=0)
    assert "worker-0..1 on " in words(done)
    assert not (bed["hostB"].files / launcher / ".orch").exists()
    ends = [LiveRun(bed["hostA"].files / launcher).log(f"worker-{index}").decode().splitlines()[-1] for index in range(2)]
    assert "test accuracy 0.9" in ends[0]
    assert ends[0].partition("]")[2] == ends[1].partition("]")[2]
