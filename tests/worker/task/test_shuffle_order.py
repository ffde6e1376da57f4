"""The seeds that all workers draw alike. tests/real/test_data.py has what the workers read with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, run_plainly
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


LARGE = """
import json
import numpy as np, tensorflow as tf
from worker.task.input import shuffle_order

said = []
shuffle_order.print_once = said.append
shuffle_order.MOST_COPIED = 40_000
arrays = tf.data.Dataset.from_tensor_slices(np.zeros((100, 100), np.float32))
table = tf.zeros([10_001])
ten = tf.data.Dataset.range(10)
told = {}

def look(name, dataset):
    said.clear()
    copy = shuffle_order.in_one_order(dataset, None)
    told[name] = [hasattr(copy, shuffle_order.COPIED), *said]

def has(inner):
    return tf.data.Dataset.range(2).flat_map(lambda _: inner)

look("small", has(ten.shuffle(10)))
look("arrays of a captured dataset", has(arrays.shuffle(10)))
look("the same without a shuffle", has(arrays))
look("a captured array", ten.shuffle(10).map(lambda at: table[at] + table[at + 1]))
tf.raw_ops.DatasetToGraphV2 = lambda **_: tf.constant(b"")  # as of TensorFlow with 2 GiB of arrays
look("a graph that is too long", has(ten))
look("beside another shuffle", has(ten).shuffle(3, seed=1).shuffle(2))
print(json.dumps(told))
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_dataset_with_large_arrays_is_not_copied_and_the_line_says_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    done = run_plainly(["large.py"], tmp_path, {"PYTHONPATH": str(ROOT), "ORCH_ORDER": "order", "CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.err
    told = json.loads(done.out.splitlines()[-1])
    assert told.pop("small") == told.pop("beside another shuffle") == [True]
    assert told.pop("the same without a shuffle") == [False]
    is_copied, line = told.pop("a graph that is too long")
    assert not is_copied
    assert line.startswith("input: orch cannot look into a dataset that a function of the dataset of large.py:")
    assert "has from outside (ValueError: its arrays have more than 2 GiB): if that one shuffles, give its shuffle" in line
    for is_copied, line in told.values():
        assert not is_copied
        assert "shuffles without a seed, and orch cannot give all workers one order (ValueError: its arrays have 0 MiB)" in line
    assert len(told) == 2
