"""Training on the nodes of a Slurm, with TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch
from tests.live import LiveRun
from tests.slurm_bed import SlurmBed

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
