"""The kinds of faults that need a real cluster, each at a moment that was chosen. `make chaos` draws kinds and moments, and more of them.

What is done to controllers, and SIGTERM to agents and templates, is tested without TensorFlow in test_stopping.py and test_orphans.py.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.real.chaos import FAULTS, PHASES, WORKERS, Aim, Fault, try_once

BY_NAME = {fault.name: fault for fault in FAULTS}
SIGNALS = (
    ("task -STOP", Aim("start", "worker-1")),
    ("template -STOP", Aim("start", "worker-0")),
    ("controller -9", Aim("start", "worker-0")),
    ("task -TERM", Aim("training", "worker-0")),
    ("controller -9", Aim("training", "worker-1")),
    ("task -9", Aim("checkpoint", "worker-1")),
    ("agent -STOP, -CONT", Aim("checkpoint", "worker-0")),
    ("task -9", Aim("shutdown", "worker-1")),
    ("agent -9", Aim("shutdown", "worker-0")),
)
TRIALS = (
    *SIGNALS,
    ("clock set", Aim("training", "worker-1")),
    *((name, None) for name in ("task stalls", "paused console", "full disk") if name in BY_NAME),
)


def test_every_phase_is_met_by_several_kinds_and_both_tasks() -> None:
    for phase in PHASES:
        assert len({name.split(" ")[0] for name, aim in SIGNALS if aim.phase == phase}) >= 2, phase
        assert {aim.task for _, aim in SIGNALS if aim.phase == phase} == set(WORKERS), phase
    assert {name.split(" ")[0] for name, _ in SIGNALS} == {"task", "template", "agent", "controller"}
    assert {"-9", "-STOP", "-TERM"} <= {word.strip(",") for name, _ in SIGNALS for word in name.split(" ")}


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize(
    ("fault", "aim"), [pytest.param(BY_NAME[name], aim, id=f"{name}, {aim.phase} of {aim.task}" if aim else name) for name, aim in TRIALS]
)
def test_whatever_is_done_to_a_cluster_it_ends_as_it_should(fault: Fault, aim: Aim | None) -> None:
    if fault.disk and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("NOT TESTED: this container may not mount")
    verdict = try_once(fault, seed=7, aim=aim, env=os.environ)
    assert verdict.wrong == []
