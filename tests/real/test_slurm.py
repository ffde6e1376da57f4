"""Training on the nodes of a Slurm, with TensorFlow."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.backends.test_join import CLEAN
from tests.conftest import ROOT, Orch
from tests.live import LiveRun, wait_for_file, wait_until
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import Place

pytestmark = [pytest.mark.root, pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]

STEP = "        saver.step(loss=loss)\n"
TELLS = f"""
        with open(os.path.join(os.environ["ORCH_RUN_DIR"], f"steps-{{os.environ['ORCH_TASK']}}"), "a") as told:
            print(saver.steps + 1, float(loss), file=told)
{STEP}
        time.sleep(float(os.environ.get("PACE") or (1.5, 0.5, 0.0, 0.0)[task.attempt - 1]))
        if task.attempt == 3 and saver.steps % 10 == 4:
            open("stalled-" + os.environ["ORCH_TASK"], "w").close()
            while True:  # for good: so it can save nothing when its job is taken away
                signal.pause()
"""
STEPS = 4 * 23
"""Four epochs of the digits in batches of sixty."""


def steps_of(run: LiveRun, index: int = 0) -> list[str]:
    """A line for each step that a worker has taken, in their order: its number and its loss."""
    path = run.path / f"steps-worker-{index}"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_steps(run: LiveRun, count: int) -> None:
    """Wait until so many steps more have been taken than before."""
    begun = len(steps_of(run))
    wait_until(lambda: len(steps_of(run)) >= begun + count, f"{count} more steps than {begun}")


@pytest.mark.core
def test_two_nodes_train_together(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    script = str(ROOT / "examples/mwms_custom_loop.py")
    done = orch.start("up", script, by=("salloc", "--quiet", "-N2")).wait(timeout=300, check=0)
    assert "cluster formed" in done.err
    first, second = (LiveRun(tmp_path).log(f"worker-{index}").decode().splitlines()[-1] for index in range(2))
    assert "test accuracy 0.9" in first
    assert first.partition("]")[2] == second.partition("]")[2]
    assert {event["host"] for event in LiveRun(tmp_path).events() if event["event"] == "template_ready"} == {"hostA", "hostB"}


def test_srun_starts_the_same_command_on_each_node_and_they_train_together(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    script, srun = str(ROOT / "examples/mwms_custom_loop.py"), ("srun", "--quiet", "-N2", "--ntasks-per-node=1")
    done = orch.start("up", script, "--join", by=srun, env=CLEAN).wait(timeout=300, check=0)
    assert "worker-0..1 on hostA, hostB" in " ".join(done.err.split())
    first, second = (LiveRun(tmp_path).log(f"worker-{index}").decode().splitlines()[-1] for index in range(2))
    assert "test accuracy 0.9" in first
    assert first.partition("]")[2] == second.partition("]")[2]


def test_a_training_goes_on_however_its_job_is_taken_away_with_the_numbers_of_an_allocation(
    orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun
) -> None:
    """By its time limit and by a job of a higher partition it saves itself at one named step. ``scontrol requeue`` comes while it stands
    still, so it continues from its newest save. Beside its first attempt, on the same nodes, runs the same training in ``salloc``, which
    ``scancel`` ends.
    """
    shutil.copy(ROOT / "examples/digits.py", tmp_path)
    text = (ROOT / "examples/resume_loop.py").read_text()
    assert text.count(STEP) == text.count("import sys\n") == 1
    (tmp_path / "train.py").write_text(text.replace(STEP, TELLS).replace("import sys\n", "import sys\nimport time\n"))
    (tmp_path / "orch.yaml").write_text("script: train.py\ncheckpoints: {order: one}\ntimeouts: {grace_s: 2}\n")
    place = Place(orch, slurm, tmp_path, script="train.py")
    settings = ("timeouts.save_before_s=60", "backend.partition=low", "backend.requeue=always")
    words = [word for setting in settings for word in ("--set", setting)]
    name, job = place.submit("--backend", "slurm", "--nodes", "3", "--time", "2", "--log-placement", *words)
    wait_for_steps(run, 2)

    beside = LiveRun(tmp_path, "beside")
    attached = orch.start("up", "train.py", "--home", "beside", "--env", "PACE=0.2", by=("salloc", "--quiet", "-N3"))
    attached.wait_for("cluster formed")
    wait_for_steps(beside, 20)
    (allocation,) = {*slurm.jobs()} - {job}
    slurm.run("scancel", "--signal=TERM", allocation)
    attached.wait(check=42)
    assert {event["host"] for event in beside.events() if event["event"] == "template_ready"} == {"hostA", "hostB", "hostC"}

    wait_until(lambda: slurm.jobs().get(job) == "PENDING", "end of the time")
    slurm.run("scontrol", "update", f"jobid={job}", "timelimit=60")
    place.start_again(job)
    wait_for_steps(run, 2)
    with place.no_room("--partition=high"):
        wait_until(lambda: slurm.jobs().get(job) == "PENDING", "preempted job")
    place.start_again(job)
    for index in range(3):
        wait_for_file(tmp_path / f"stalled-worker-{index}")
    stalled = len(steps_of(run))
    seen, page = orch("top", "--once", name, check=0).out, orch("report", "-o", "/dev/stdout", name, check=0).out
    assert all(f"worker-{index}  host{letter}" in seen and f"<h3>host{letter}</h3>" in page for index, letter in enumerate("ABC")), seen
    slurm.run("scontrol", "requeue", job)
    place.start_again(job)
    place.wait(name, timeout=400, check=0)

    told = " ".join(" ".join(path.read_text() for path in run.path.glob("attempt-*/worker-0/*.log")).split())
    ends = [str(attempt["cause"]["what"]) for attempt in run.result()["past"]]
    assert ends[0].startswith("the time of its allocation is nearly over; "), ends
    for end in ends[:2]:
        (number,) = re.findall(r"; the training has saved itself at step (\d+)$", end)
        assert f"loop-1 continues at step {number} " in told, told
    (newest,) = re.findall(
        rf"loop-1 continues at step (\d+) .*the training had finished step {stalled}: \d steps? (?:is|are) done again", told
    )
    numbers = [int(step.split()[0]) for step in steps_of(run)]
    assert numbers == [*range(1, stalled + 1), *range(int(newest) + 1, STEPS + 1)], "no other step was taken twice, and none is missing"
    each_once = list(dict.fromkeys(steps_of(run)))
    assert len(each_once) == STEPS, "a step that was taken again had the same loss"
    assert "test accuracy 0.9" in told
    for index in range(3):
        assert steps_of(run, index) == steps_of(run)
        assert steps_of(beside, index) == each_once[: len(steps_of(beside))]
    placed = orch.start("placement", name, by=slurm.login_node("hostC")).wait(check=0)
    assert "CPU:0" in placed.out, placed
