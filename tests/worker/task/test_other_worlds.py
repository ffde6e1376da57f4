"""What is said of a training that another number of workers continues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.task.checkpoints import restoring, world_facts
from worker.task.input import shuffle_order


@pytest.mark.parametrize("step_in_epoch", [0, 7])
def test_the_metrics_of_an_epoch_that_fewer_workers_continue_are_named(step_in_epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("ORCH_ELASTIC", "1")
    monkeypatch.setattr(restoring, "print_once", said.append)
    monkeypatch.setattr(world_facts, "world", lambda strategy, workers: {"workers": workers, "replicas": len(workers)})
    monkeypatch.setattr(shuffle_order, "word", lambda: "order")
    before = {"workers": ["worker-0", "worker-1"], "replicas": 2}
    save: Any = SimpleNamespace(
        name="step-0000000007", manifest={"world": before, "versions": {}, "order": "order", "step_in_epoch": step_in_epoch}
    )
    restoring.tell_of_other_world(SimpleNamespace(strategy=None, workers=["worker-0"]), save)
    assert len(said) == 1
    assert "saved by 2 workers with 2 replicas, and now there are 1 with 1: the global batches are the same" in said[0]
    assert ("the metrics of the resumed epoch are not exact" in said[0]) == bool(step_in_epoch)
