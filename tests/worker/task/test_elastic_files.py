"""`worker.files` in an elastic cluster: any number of workers reads the same global batches, also where they do not divide the elements.

A program that divides its input itself is told what this means.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests import tfrecords
from tests.worker.agent_double import ROOT, run_plainly

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import json, os
os.environ["ORCH_ELASTIC"] = "1"
import tensorflow as tf
import worker
from worker.task.input import input_policy

def batches(workers, **given):
    found = []
    for index in range(workers):
        part = tf.distribute.InputContext(workers, index, workers)
        data = worker.files(
            "*.tfrecord", lambda one: tf.strings.to_number(one, tf.int64), batch=12, shuffle=16, seed=3, repeat=2, input_context=part,
            **given,
        )
        found.append([batch.tolist() for batch in data.as_numpy_iterator()])
    steps = max(map(len, found))
    return [sorted(sum((part[step] if step < len(part) else [-1] for part in found), [])) for step in range(steps)]

refused = ""
try:
    worker.files("*.tfrecord", repeat=2)
except ValueError as error:
    refused = str(error)
def said(source):
    changes = input_policy.Changes("fit")
    made, _ = input_policy.apply(source, None, tf.distribute.get_strategy(), {"auto_shard": "data"}, changes)
    if callable(made):
        made(None)
    return "; ".join(changes.told)

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
plain = tf.data.Dataset.range(8)
files = worker.files("*.tfrecord", batch=12).map(lambda one: one)
told = {
    "own policies": [said(one) for one in (plain.with_options(options), lambda _: plain)],
    "orch's": [said(one) for one in (plain, files, lambda _: files)],
    "whole": [batches(workers) for workers in (1, 2, 3, 4)],
    "rest": [batches(workers, start=9) for workers in (1, 2, 3, 4)],
    "not counted": [batches(workers, count=False) for workers in (1, 2, 3, 4)],
    "not counted, rest": [batches(workers, count=False, start=9) for workers in (1, 2, 3, 4)],
    "refused": refused,
}
print("TOLD", json.dumps(told), flush=True)
"""


def test_elements_that_the_batches_do_not_divide_give_any_number_of_workers_the_same_batches(tmp_path: Path) -> None:
    for index in range(5):
        tfrecords.write(tmp_path / f"{index}.tfrecord", [str(number).encode() for number in range(index * 20, index * 20 + 20)])
    done = run_plainly(["-c", PROGRAM], tmp_path, {"PYTHONPATH": str(ROOT)}).check()
    told = json.loads(done.out.rpartition("TOLD ")[2].splitlines()[0])
    whole = told["whole"][0]
    assert [len(batch) for batch in whole] == [12] * 16, "an epoch has whole global batches"
    assert all(len({*itertools.chain(*epoch)}) == 96 for epoch in (whole[:8], whole[8:])), "no element comes twice in an epoch"
    for name in ("whole", "not counted"):
        assert told[name] == [whole] * 4, name
    for name in ("rest", "not counted, rest"):
        assert told[name] == [whole[9:]] * 4, name
    assert "say batch=" in told["refused"]
    risk = "with another number of workers (--workers MIN:MAX) some elements may come twice and others never"
    assert all(line.endswith(risk) for line in told["own policies"]), told["own policies"]
    assert not any(risk in line for line in told["orch's"]), told["orch's"]
