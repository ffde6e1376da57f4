"""A cluster that goes on with fewer workers when a host is lost, and with all of them when it is back: the same global batches."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tfrecords
from tests.backends.test_crate import ENTER, Up
from tests.backends.test_crate import orch as crates
from tests.live import LiveRun, wait_until
from tests.real.test_resume import LOOP

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

STEPS = 48
PROGRAM = LOOP.replace(".batch(8)", ".batch(12)").replace("epochs(4)", "epochs(12)").replace('f"ids-{TASK}"', 'f"ids-{TASK}-{ATTEMPT}"')
PROGRAM = PROGRAM.replace('os.environ.get("PACE", 0)', '0 if ATTEMPT == "3" else os.environ["PACE"]')  # nothing is waited for any more
# Each worker has statistics of its own, but no number depends on how many workers there are.
PROGRAM = PROGRAM.replace("BatchNormalization()", "BatchNormalization(trainable=False)").replace("Dropout(0.3, seed=3)", "Dropout(0.0)")
SAVE = "            saver.step(loss=loss)\n"
PROGRAM = PROGRAM.replace(SAVE, f'            print("LOSS", saver.steps + 1, float(loss), flush=True)\n{SAVE}')
SPEC = """
{script: script.py, python: %s, tasks: {worker: "2:3"}, restart: {max: 1}, checkpoints: {order: one}, timeouts: {grace_s: 120},
 defaults: {env: {PACE: "%s"}}, backend: {type: crate, crates: crates.txt}}
"""


def batches_of(directory: Path) -> dict[int, dict[int, list[int]]]:
    """The elements of each global batch, by attempt and step; only of steps that all workers have finished."""
    found: dict[int, dict[int, list[int]]] = {}
    for path in LiveRun(directory).path.glob("ids-*"):
        for line in path.read_text().splitlines():
            step, *ids = map(int, line.split())
            found.setdefault(int(path.name.rpartition("-")[2]), {}).setdefault(step, []).extend(ids)
    return {attempt: {step: sorted(ids) for step, ids in steps.items() if len(ids) == 12} for attempt, steps in found.items()}


def losses_of(directory: Path) -> dict[int, list[float]]:
    """The loss of each step, once for each attempt that has made the step."""
    found: dict[int, list[float]] = {}
    for path in LiveRun(directory).path.glob("attempt-*/worker-0/stdout.log"):
        for line in path.read_text().splitlines():
            word, *numbers = line.split()
            if word == "LOSS":
                found.setdefault(int(numbers[0]), []).append(float(numbers[1]))
    return found


def test_a_host_that_is_lost_and_comes_back(script: Any, tmp_path: Path) -> None:
    script(PROGRAM, "script.py")
    (tmp_path / "crates.txt").write_text("red 2\nblue 1\n")
    (tmp_path / "enter").write_text(ENTER.replace("exec", '[ -e "$(dirname "$0")/$CRATE.down" ] && exit 44\nexec'))
    (tmp_path / "enter").chmod(0o700)
    (tmp_path / "orch.yaml").write_text(SPEC % (sys.executable, "0"))
    Up(tmp_path).end(0)
    (whole,) = batches_of(tmp_path).values()
    losses = losses_of(tmp_path)
    assert sorted(whole) == sorted(losses) == list(range(1, STEPS + 1))

    (tmp_path / "orch.yaml").write_text(SPEC % (sys.executable, "0.6"))
    former, up = LiveRun(tmp_path).path, Up(tmp_path)

    def has_reached(attempt: int, step: int) -> bool:
        return LiveRun(tmp_path).path != former and step in batches_of(tmp_path).get(attempt, {})

    wait_until(lambda: has_reached(1, 7), "step 7 of three workers", 200)
    (tmp_path / "blue.down").touch()
    os.kill(int((tmp_path / "blue.tmp/pid").read_text()), signal.SIGKILL)
    wait_until(lambda: has_reached(2, 9), "step 9 of two workers", 200)
    (tmp_path / "blue.down").unlink()
    said = " ".join(up.end(0).split())

    assert "elastic, at least 2 workers. Not exact: " in said
    assert "attempt 2: multi_worker_mirrored, worker-0..1 on red" in said
    assert "elastic: 2 of 3 workers: host blue cannot be reached: the crate blue is shut" in said
    (step,) = map(int, re.findall(r"the training saves itself at the end of step (\d+)", said))
    assert f"host blue is back: it gets workers again; the training has saved itself at step {step}" in said
    assert "attempt 3: multi_worker_mirrored, worker-0..2 on red, blue" in said
    assert f"loop-1 continues at step {step} " in said
    assert re.search(r"attempt 1 ended after \S+ s with 3 workers: lost host blue", said)
    assert re.search(r"attempt 2 ended after \S+ s with 2 workers: host blue is back", said)
    assert "workers: 3, then 2, then 3, of 3 at most" in crates(tmp_path, "ps").stdout
    found = batches_of(tmp_path)
    assert min(found[3]) == step + 1, "no step was lost or done twice"
    assert {number: batch for attempt in sorted(found) for number, batch in found[attempt].items()} == whole
    for steps in found.values():
        assert all(whole[number] == batch for number, batch in steps.items())
    found_losses = losses_of(tmp_path)
    assert sorted(found_losses) == sorted(losses)
    for number, values in found_losses.items():
        assert values == pytest.approx(losses[number] * len(values), rel=1e-4), f"step {number}"


FILES = """
import json, os
os.environ["ORCH_ELASTIC"] = "1"
import tensorflow as tf
import worker

def batches(workers, start):
    found = []
    for index in range(workers):
        part = tf.distribute.InputContext(workers, index, workers)
        data = worker.files(
            "*.tfrecord", lambda one: tf.strings.to_number(one, tf.int64), batch=12, shuffle=16, seed=3, repeat=2,
            start=start, input_context=part,
        )
        found.append([batch.tolist() for batch in data.as_numpy_iterator()])
    return [sorted(sum(parts, [])) for parts in zip(*found, strict=True)]

told = []
for shard in ("file", "off"):
    try:
        worker.files("*.tfrecord", batch=12, shard=shard)
    except ValueError as error:
        told.append(str(error))
print(json.dumps([[batches(workers, start) for workers in (1, 2, 3, 4)] for start in (0, 7)] + [told]))
"""


def test_files_give_any_number_of_workers_the_same_global_batches(orch: Any, script: Any, tmp_path: Path) -> None:
    for index in range(5):
        tfrecords.write(tmp_path / f"{index}.tfrecord", [str(number).encode() for number in range(index * 12, index * 12 + 12)])
    program = str(script(FILES, "files.py"))
    done = orch("up", program, "--strategy", "none", check=0)
    whole, rest, told = json.loads(next(line for line in LiveRun(tmp_path).log("worker-0").decode().splitlines() if line.startswith("[")))
    assert [len(of_workers) for of_workers in whole] == [10] * 4, done
    assert all(of_workers == whole[0] for of_workers in whole)
    assert all(of_workers == whole[0][7:] for of_workers in rest)
    assert all(sorted(itertools.chain(*epoch)) == list(range(60)) for epoch in (whole[0][:5], whole[0][5:]))
    assert whole[0][:5] != whole[0][5:], "each epoch has an order of its own"
    assert [text.partition(":")[0] for text in told] == ["worker.files"] * 2


FIT = """
import json, os
os.environ["ORCH_ELASTIC"] = "1"
import keras
import numpy as np
import tensorflow as tf

numbers = np.random.default_rng(0)
x = numbers.normal(size=(101, 8)).astype("float32")
y = (x @ numbers.normal(size=(8, 1))).astype("float32")
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1)),
                              keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))])
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse", metrics=["mae"])
for data in (dict(shuffle_seed=5), dict()):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(101, seed=data.get("shuffle_seed")).batch(16)
    found = model.fit(dataset, epochs=2, verbose=0, validation_data=(x[:13], y[:13]))
    print("FOUND", json.dumps(found.history), flush=True)
"""


def test_one_worker_of_an_elastic_fit_has_the_batches_of_two_and_of_one_process(orch: Any, script: Any, tmp_path: Path) -> None:
    """With AdamW, data that no batch divides, and a shuffle with a seed and without: Keras takes a batch for the model of a worker alone,
    and would begin with the second order of the shuffle.
    """
    program = str(script(FIT, "fit.py"))

    def found(*options: str) -> list[Any]:
        orch("up", program, *options, "--checkpoint", "--set", "checkpoints.order=one", check=0)
        lines = LiveRun(tmp_path).log("worker-0").decode().splitlines()
        return [json.loads(line.removeprefix("FOUND ")) for line in lines if line.startswith("FOUND ")]

    process, one, two = found("--strategy", "none"), found("-n", "1"), found("-n", "2")
    for alone, with_another in zip(one, two, strict=True):
        for name, values in alone.items():
            assert values == pytest.approx(with_another[name], rel=1e-4), name
    for name, values in process[0].items():  # with the seed of the program
        assert values == pytest.approx(two[0][name], rel=1e-4), name
