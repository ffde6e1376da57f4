"""Training on the nodes of a Slurm, with TensorFlow."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch
from tests.live import LiveRun, wait_for_file, wait_until
from tests.real.test_resume import LOOP, latest, steps_of
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import Place

pytestmark = [pytest.mark.root, pytest.mark.tensorflow, pytest.mark.timeout(600)]

EXAMPLE = str(ROOT / "examples/mwms_custom_loop.py")


@pytest.mark.slow
def test_three_nodes_train_together_in_an_allocation_and_as_a_job(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    losses = []
    for words, by in (((), ("salloc", "--quiet", "-N3")), (("--backend", "slurm", "--nodes", "3"), ())):
        done = orch.start("up", EXAMPLE, *words, by=by).wait(timeout=300, check=0)
        assert "cluster formed" in done.err
        run = LiveRun(tmp_path)
        losses.append({run.log(f"worker-{index}").decode().splitlines()[-1].partition("]")[2] for index in range(3)})
        assert {event["host"] for event in run.events() if event["event"] == "template_ready"} == {"hostA", "hostB", "hostC"}
    assert len(losses[0]) == 1, losses  # the same loss everywhere
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_job_that_is_queued_again_goes_on_from_its_checkpoint(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> None:
    """Slurm requeues it while it trains, and the line about the save says how many steps are lost."""
    shutil.copy(ROOT / "examples/digits.py", tmp_path)
    done_step = "saver.step(loss=loss)"
    # For good: a training that goes on saves itself when its job is taken away, and loses no step.
    stalls = "        if task.attempt == 1 and saver.steps == 34:\n            open('stalled', 'w').close()"
    stalls += "\n            while True:\n                signal.pause()"
    text = (ROOT / "examples/resume_loop.py").read_text()
    assert text.count(done_step) == 1
    (tmp_path / "train.py").write_text(text.replace(done_step, f"{done_step}\n{stalls}"))
    running = orch.start("up", "train.py", "--backend", "slurm", "--nodes", "3", "--grace", "2")
    wait_for_file(tmp_path / "stalled")
    saved = LiveRun(tmp_path).path / "checkpoints/loop-1/step-0000000030"
    wait_until(saved.exists, "save")
    (job,) = slurm.jobs()
    slurm.run("scontrol", "requeue", job)
    Place(orch, slurm, tmp_path).start_again(job)
    done = running.wait(timeout=400, check=0)
    assert re.search(r"loop-1 continues at step 30 .*the training had finished step 34: 4 steps are done again", done.err), done
    assert "test accuracy 0.9" in done.out, done


@pytest.mark.slow
def test_a_training_that_is_taken_away_three_times_loses_no_step(orch: Orch, slurm: SlurmBed, tmp_path: Path, run: LiveRun) -> None:
    """By its time limit, by a job of a higher partition, and by ``scancel --signal``: each time all tasks save at one named step."""
    slow = 'time.sleep(2.0 if ATTEMPT == "1" else 0.7)'
    text = LOOP.replace('time.sleep(float(os.environ.get("PACE", 0)))', slow).replace("saver.epochs(4)", "saver.epochs(40)")
    assert text.count(slow) == text.count("epochs(40)") == 1
    (tmp_path / "train.py").write_text(text)
    spec = "checkpoints: {order: one}\nbackend: {type: slurm, nodes: 2, time: '2', save_before_s: 60, partition: low, requeue: always}\n"
    (tmp_path / "orch.yaml").write_text(spec)
    place = Place(orch, slurm, tmp_path)
    running = orch.start("up", "train.py")

    def wait_for_steps(attempt: int) -> int:
        """Wait until an attempt has begun two steps."""
        ready = {"event": "task_saves", "attempt": attempt}
        wait_until(lambda: any(ready.items() <= event.items() for event in run.events()), f"training of attempt {attempt}")
        begun = len(steps_of(latest(tmp_path)).get("ids-worker-0", {}))
        wait_until(lambda: len(steps_of(latest(tmp_path)).get("ids-worker-0", {})) >= begun + 2, f"steps of attempt {attempt}")
        return begun

    wait_until((run.path / "events.jsonl").exists, "first event")
    wait_for_steps(1)
    (job,) = slurm.jobs()
    place.start_again(job)
    wait_for_steps(2)
    with place.no_room("--partition=high"):
        wait_until(lambda: slurm.jobs().get(job) == "PENDING", "preempted job")
    place.start_again(job)
    wait_for_steps(3)
    slurm.run("scancel", "--signal=TERM", job)
    done = running.wait(timeout=100, check=143)
    ends = [str(attempt["cause"]["what"]) for attempt in (*run.result()["past"], run.result())]
    steps = [int(re.search(r"; the training has saved itself at step (\d+)$", end)[1]) for end in ends]  # type: ignore[index]
    assert ends[0].startswith("the time of its allocation is nearly over; ")
    assert steps == sorted({*steps}), done
    for number in steps[:2]:
        assert f"loop-1 continues at step {number} " in " ".join(done.err.split()), done
    for path in run.path.glob("ids-*"):
        begun = [int(line.split()[0]) for line in path.read_text().splitlines()]
        assert begun == list(range(1, steps[2] + 1)), "no step was done twice, and none is missing"
