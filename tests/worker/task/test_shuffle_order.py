"""The seeds that all workers draw alike. tests/real/test_data.py has what the workers read with them."""

from __future__ import annotations

import json

import pytest

from worker.task.input import shuffle_order


def draws(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[int]:
    """What a new task draws."""
    for name in ("ORCH_RUN_ID", "ORCH_ATTEMPT", "ORCH_ORDER", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shuffle_order._drawn.clear()
    return [shuffle_order.draw_seed(purpose) for purpose in ("arrays", "arrays", "a dataset")]


def config(index: int, port: int = 1) -> str:
    return json.dumps({"cluster": {"worker": [f"a:{port}", f"b:{port}"]}, "task": {"type": "worker", "index": index}})


def test_all_workers_and_attempts_draw_the_same_seeds_and_each_run_draws_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first = draws(monkeypatch, ORCH_RUN_ID="digits-1", ORCH_ATTEMPT="1", TF_CONFIG=config(0))
    assert first == draws(monkeypatch, ORCH_RUN_ID="digits-1", ORCH_ATTEMPT="1", TF_CONFIG=config(1))
    assert first == draws(monkeypatch, ORCH_RUN_ID="digits-1", ORCH_ATTEMPT="2")
    assert len({*first, *draws(monkeypatch, ORCH_RUN_ID="digits-2", ORCH_ATTEMPT="1")}) == 6, "two draws are equal"
    assert first == draws(monkeypatch, ORCH_RUN_ID="digits-2", ORCH_ORDER="digits-1"), "a run that continues another one"
    assert all(0 < seed < 1 << 56 for seed in first)


def test_workers_of_a_script_run_by_hand_draw_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = [draws(monkeypatch, TF_CONFIG=config(index)) for index in (0, 1)]
    assert by_hand[0] == by_hand[1] != draws(monkeypatch, TF_CONFIG=config(0, port=2))
