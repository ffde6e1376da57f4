"""The seeds that all workers draw alike. tests/real/test_data.py has what the workers read with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, run_plainly
from worker.task.input import shuffle_order


def draws(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[int]:
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
shuffle_order.print_once = lambda text, **_: said.append(text)
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
    assert "uses (ValueError: its arrays have more than 2 GiB). fix: if it shuffles, give it a seed" in line
    for is_copied, line in told.values():
        assert not is_copied
        assert "shuffles without a seed, and orch cannot give all workers one order (ValueError: its arrays have 0 MiB)" in line
    assert len(told) == 2


FAILED = """
import sys
import tensorflow as tf
from worker.task import patches
from worker.task.input import shuffle_order
from worker.task.patches import import_hooks

def fail(dataset, number=0):
    raise error

shuffle_order._with_seeds = fail
shuffle_order.print_once = lambda text, **_: print(text)
dataset = tf.data.Dataset.range(4).shuffle(4)
error = tf.errors.UnimplementedError(None, None, "no graph")
print(shuffle_order._copied(dataset), shuffle_order._copied(dataset, 1))
for error in (KeyError("x"), tf.errors.ResourceExhaustedError(None, None, "no memory"), MemoryError()):
    try:
        shuffle_order._copied(dataset)
    except Exception as fault:
        print(type(fault).__module__, type(fault).__name__, fault)
of_function = tf.data.Dataset.range(2).repeat().flat_map(lambda _: dataset)
cut = dataset.repeat().filter(lambda number: number > 1).take(3)
ended = tf.data.Dataset.zip(dataset.filter(lambda number: number > 1), dataset.repeat())
print([shuffle_order.is_endless(each) for each in (dataset, dataset.repeat(), of_function, of_function.batch(2), cut, ended)])
one = tf.data.Dataset.range(4).repeat().shuffle(4)
each = (one, dataset, dataset.repeat(), of_function, dataset.repeat(2), dataset.repeat().take(4), dataset.repeat().prefetch(1).take(4), cut)
print([shuffle_order._how_it_draws(one) for one in each])
chosen = tf.data.Dataset.choose_from_datasets([dataset.repeat(), dataset.repeat()], tf.data.Dataset.range(2).repeat(3)).batch(2)
for one in (chosen, dataset.repeat().take(4).batch(2).prefetch(1)):
    print(shuffle_order.is_endless(one), shuffle_order._how_it_draws(one))
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_copy_that_may_fail_in_one_worker_alone_ends_the_training(tmp_path: Path) -> None:
    (tmp_path / "failed.py").write_text(FAILED)
    done = run_plainly(["failed.py"], tmp_path, {"PYTHONPATH": str(ROOT), "ORCH_ORDER": "order", "CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.err
    unseeded, again, none, *faults, endless, draws, chosen, cut = done.out.splitlines()
    assert [chosen, cut] == ["False later"] * 2
    assert "shuffles without a seed, and orch cannot give all workers one order (UnimplementedError: no graph)" in unseeded
    assert "is begun a second time, and orch cannot give all workers one order (UnimplementedError: no graph)" in again
    assert "use one iterator for all epochs" in again
    assert none == "None None"
    assert [fault.partition("failed: ")[2].partition(":")[0] for fault in faults] == ["KeyError", "ResourceExhaustedError", "MemoryError"]
    assert all(fault.startswith("orch Fault order of shuffles: orch's own code has failed") for fault in faults)
    assert endless == "[False, True, True, True, False, False]"
    assert draws == "[None, None, 'ahead', 'ahead', 'later', 'later', 'ahead', 'later']"
