"""TensorFlow on three hosts whose exchange goes over links of a known rate: its connections are seen, and the slow one of them is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_progress import read_cluster
from tests.backends.test_links import notes, shaped  # noqa: F401
from tests.bed import Bed
from tests.conftest import Orch
from tests.live import LiveRun, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.tensorflow, pytest.mark.timeout(900)]

TRAIN = """
import tensorflow as tf
import worker

strategy = worker.strategy()
weights = tf.ones([512, 512])

@tf.function
def train_step():
    def of_replica():
        return tf.distribute.get_replica_context().all_reduce("SUM", weights)
    strategy.run(of_replica)

step = 0
while True:
    train_step()
    step += 1
    worker.report(step=step)
"""


def test_the_slow_link_of_tensorflows_exchange_is_named(orch: Orch, bed: Bed, tmp_path: Path, shaped: Any) -> None:  # noqa: F811
    """Each worker sends to the next, and the last to the first."""
    (tmp_path / "train.py").write_text(TRAIN)
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    words = ("-H", "hostA,hostB,hostC", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    running = orch.start("up", "train.py", *words, env=env)
    wait_until(lambda: LiveRun(tmp_path).path.joinpath("samples/0.jsonl").exists(), "samples", 300)
    run = LiveRun(tmp_path)

    def trains() -> bool:
        return all(task.report.get("step", 0) > 20 for task in read_cluster(RunDir(run.path)).tasks.values())

    wait_until(trains, "steps", 300)
    assert notes(run) == []
    for other in ("hostA", "hostC"):  # to one of them it sends the gradients, to the other one next to nothing
        shaped("hostB", other, 0.4)
    wait_until(lambda: bool(notes(run)), "line about a link", 120)
    (line,) = notes(run)
    print(line)
    assert re.match("the link worker-1 -> worker-[02] is unlike the others: ", line)
    orch("down", check=0)
    running.wait(check=143)
