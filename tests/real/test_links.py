"""TensorFlow on three hosts whose exchange goes over links of a known rate: its connections are seen, and the slow one of them is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.policy.links import links_of
from orchestrator.record import samples
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_progress import read_cluster
from tests.backends.test_links import notes, shaped  # noqa: F401
from tests.bed import Bed
from tests.conftest import Orch
from tests.live import LiveRun, wait_until
from worker.protocol.messages import Sampled

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

    def seen() -> list[Sampled]:
        return list(samples.read_recent_links(run.path))

    wait_until(lambda: len(seen()) >= 9, "links", 300)
    cluster = read_cluster(RunDir(run.path))
    newest = {sample.host: (sample,) for sample in seen()}
    rates = {(link.sender, link.receiver): link.use.sent for link in links_of(newest, cluster)}
    print(rates)
    assert {ends for ends, sent in rates.items() if sent > max(rates.values()) / 2} in (
        {("hostA", "hostB"), ("hostB", "hostC"), ("hostC", "hostA")},
        {("hostA", "hostC"), ("hostC", "hostB"), ("hostB", "hostA")},
    )
    assert notes(run) == []
    (slow,) = [ends for ends, sent in rates.items() if sent > max(rates.values()) / 2 and ends[0] == "hostB"]
    shaped(*slow, 0.4)
    wait_until(lambda: bool(notes(run)), "line about a link", 120)
    assert notes(run)[0].startswith(f"the link worker-1 -> worker-{'abc'.index(slow[1][-1].lower())} is unlike the others: ")
    print(notes(run))
    orch("down", check=0)
    running.wait(check=143)
