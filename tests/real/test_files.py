"""`worker.files` in two workers of a real cluster, and the code samples of TensorFlow's guide to distributed input."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import TaskFailed, cluster
from tests import tfrecords
from tests.conftest import Orch
from tests.real.guides import DONE, SAMPLES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400), pytest.mark.usefixtures("warm_tensorflow")]

SIZES = {"uneven": (4, 5, 4, 3, 6), "one": (13,), "even": (4, 4, 4, 4), "empty": (0, 0), "half": (0, 4), "few": (1, 0), "train": (2,) * 12}
"""By directory, of how many elements each TFRecord file is. The elements of a directory are numbered through."""


@pytest.fixture
def files(tmp_path: Path) -> str:
    for name, sizes in SIZES.items():
        (tmp_path / name).mkdir()
        numbers = (str(number).encode() for number in itertools.count())
        for index, size in enumerate(sizes):
            tfrecords.write(tmp_path / name / f"{index}.tfrecord", list(itertools.islice(numbers, size)))
    (tmp_path / "lines").write_text("1\n2\n3")
    (tmp_path / "broken").write_bytes((tmp_path / "one/0.tfrecord").read_bytes()[:-3])
    return str(tmp_path)


def decode(record: Any) -> Any:
    import tensorflow as tf

    return tf.strings.to_number(record, tf.int64)


def cases(strategy: Any, files: str) -> dict[str, Any]:
    """In each of two workers: what its replica gets, step by step, or what `worker.files` refuses."""
    import keras
    import tensorflow as tf

    import worker

    uneven, one, even = (f"{files}/{name}/*.tfrecord" for name in ("uneven", "one", "even"))

    def given(distributed: Any) -> Any:
        return [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in distributed]

    def taken(*args: Any, **kwargs: Any) -> Any:
        return given(strategy.experimental_distribute_dataset(worker.files(*args, **kwargs)))

    def make(context: Any) -> Any:
        return worker.files(even, decode, batch=4, input_context=context)

    def refusal(pattern: str, **kwargs: Any) -> str:
        with pytest.raises((ValueError, OSError)) as refused:
            worker.files(pattern, **kwargs)
        return f"{refused.type.__name__}: {refused.value}"

    def fit(dataset: Any, **kwargs: Any) -> tuple[int, float]:
        """The number of steps, and the sum of all that `fit` has trained on: each element moves the weight by itself."""
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
            model.compile(keras.optimizers.SGD(1.0), lambda y, out: -out[:, 0])
        steps: list[int] = []
        counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
        model.fit(dataset.map(lambda x: (tf.cast(x, tf.float32)[:, None], x)), verbose=0, callbacks=[counting], **kwargs)
        return len(steps), float(model.get_weights()[0][0, 0])

    return {
        "by file": taken(uneven, decode, batch=4),
        "whole batches": taken(uneven, decode, batch=6, drop_remainder=True, repeat=2),
        "by data": taken(one, decode, batch=4),
        "shuffled, by data": taken(one, decode, batch=4, shuffle=20, repeat=2, shard="data"),
        "off": taken(one, decode, batch=4, shard="off"),
        "from function": given(strategy.distribute_datasets_from_function(make)),
        "for ever": given(strategy.experimental_distribute_dataset(worker.files(even, decode, batch=4, repeat=None).take(9))),
        "for ever, as in tf.data": given(strategy.experimental_distribute_dataset(worker.files(even, decode, batch=4, repeat=-1).take(9))),
        "lines": [int(line) for line in worker.files(f"{files}/lines", reader="lines", shard="off")],
        "reader": taken(even, reader=lambda name: tf.data.Dataset.range(3), batch=4),
        "fit": fit(worker.files(even, decode, batch=4)),
        "fit, uneven": fit(worker.files(uneven, decode, batch=4, drop_remainder=True), epochs=2),
        "no files": refusal(f"{files}/*.none"),
        "small batch": refusal(even, batch=1),
        "one file": refusal(one, shard="file"),
        "cut off": refusal(f"{files}/broken"),
        "start": refusal(even, batch=4, start=1, shuffle=4),
        "hint": refusal(even, shard="hint"),
        "unknown word": refusal(even, shard="files"),
        "epochs": refusal(even, repeat=-2),
        "batches": refusal(even, batch=4, start=-1),
        "empty files": refusal(f"{files}/empty/*", batch=4),
        "an empty file": refusal(f"{files}/half/*", batch=4),
        "few elements": refusal(f"{files}/few/*", batch=4),
    }


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def check_shares(first: dict[str, Any], second: dict[str, Any]) -> None:
    """What two workers got in each case."""
    # Files of 4, 5, 4, 3 and 6 elements: worker 0 has 14, worker 1 has 8, and so many does each of them take.
    assert [len(batch) for batch in first["by file"]] == [len(batch) for batch in second["by file"]] == [2] * 4
    assert not {*flat(first["by file"])} & {*flat(second["by file"])}
    assert sorted(flat(second["by file"])) == [4, 5, 6, 7, 8, 13, 14, 15]
    assert [len(batch) for batch in first["whole batches"]] == [len(batch) for batch in second["whole batches"]] == [3] * 4
    assert first["by data"] == [[0, 2], [4, 6], [8, 10]]
    assert second["by data"] == [[1, 3], [5, 7], [9, 11]]
    assert first["shuffled, by data"] != second["shuffled, by data"]
    for epoch in (slice(0, 6), slice(6, 12)):  # one of worker 0's seven is left out, another one each time
        drawn = flat(first["shuffled, by data"])[epoch]
        assert len({*drawn} & {*range(0, 13, 2)}) == 6
        assert sorted(flat(second["shuffled, by data"])[epoch]) == [1, 3, 5, 7, 9, 11]
    assert first["off"] == second["off"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12]]
    assert sorted(flat(first["from function"]) + flat(second["from function"])) == [*range(16)]
    assert len(first["for ever"]) == len(second["for ever"]) == 18
    assert first["for ever, as in tf.data"] == first["for ever"]
    assert first["lines"] == second["lines"] == [1, 2, 3]
    assert sorted(flat(first["reader"])) == [0, 0, 1, 1, 2, 2]
    # Four steps that see every element once: each weight's step is the mean of its elements.
    assert first["fit"] == second["fit"] == (4, pytest.approx(sum(range(16)) / 4))
    assert first["fit, uneven"] == second["fit, uneven"]
    assert first["fit, uneven"][0] == 8


def check_refusals(found: dict[str, str], directory: str) -> None:
    assert found["no files"].startswith(f"FileNotFoundError: worker.files: no file fits '{directory}/*.none'")
    assert found["small batch"] == "ValueError: worker.files: a global batch of 1 for 2 replicas: make it 2 or more"
    assert "1 file for 2 workers, and shard is file: worker 1 would get nothing; say data, or make 2 files or more" in found["one file"]
    assert found["cut off"].startswith("ValueError: worker.files: ")
    cut = "broken: at byte 221: the file ends inside record 12, which begins at byte 206 and should end at byte 224"
    assert cut in found["cut off"]
    ways = "say batch=, a multiple of the 2 workers, and seed= (input.shuffle_seed), and not deterministic=False"
    assert found["start"] == f"ValueError: worker.files: start=1 needs batches and an order that come again: {ways}"
    assert "is auto, file, data or off here, and not hint" in found["hint"]
    assert "is auto, file, data or off here, and not files" in found["unknown word"]
    assert found["epochs"] == "ValueError: worker.files: repeat=-2: it is the number of epochs; None (or -1): for ever"
    assert found["batches"] == "ValueError: worker.files: start=-1: it is the number of batches that were trained, 0 or more"
    assert f"there is no element in these files: {directory}/empty/" in found["empty files"]
    ways = "say shard='data', take a smaller batch or fewer workers, or write more elements"
    assert found["an empty file"].endswith(f"worker 0 would get 0 elements of 4 in an epoch: {ways}")
    assert found["few elements"].endswith(f"would get 0 elements of 1 in an epoch: {ways}")


@pytest.mark.slow
def test_two_workers_share_files(files: str) -> None:
    with cluster(workers=2) as c:
        first, second = c.run(cases, files).values()
        said = c.logs("worker-0")
    check_shares(first, second)
    check_refusals(first, files)
    assert "5 files with 22 elements; each of 2 workers reads its own share of them; the shares have 8 to 14 elements, of which" in said
    assert "1 file with 13 elements; each of 2 workers reads all of them and keeps one element of 2" in said


Steps = dict[int, list[int]]
KILLED_IN = 6
"""The step in whose middle worker-1 dies: inside the second epoch, and behind what was saved."""


def train(strategy: Any, files: str, on_step: Callable[[str, Steps], None] | None = None) -> tuple[Steps, int]:
    """Twelve steps over 24 elements, three epochs; saved after each second step. Returns the steps that it took, and the sum of all."""
    import tensorflow as tf

    import worker

    step, total, task = tf.Variable(0), tf.Variable(0, dtype=tf.int64), worker.context().task
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step, total=total), f"{files}/checkpoints-{task}", max_to_keep=1)
    manager.restore_or_initialize()
    steps: Steps = {}
    dataset = worker.files(f"{files}/train/*", decode, batch=6, repeat=3, shuffle=8, seed=7, start=int(step))
    for batch in strategy.experimental_distribute_dataset(dataset):
        total.assign_add(strategy.reduce("sum", strategy.run(tf.reduce_sum, args=(batch,)), axis=None))
        steps[int(step)] = strategy.experimental_local_results(batch)[0].numpy().tolist()
        if on_step:
            on_step(task, steps)
        step.assign_add(1)
        if int(step) % 2 == 0:
            manager.save()
    return steps, int(total)


def test_a_training_goes_on_at_the_element_at_which_a_worker_was_killed(files: str) -> None:
    def write_or_die(task: str, steps: Steps) -> None:
        Path(files, f"{task}.json").write_text(json.dumps(list(steps.items())))
        if task == "worker-1" and KILLED_IN in steps:
            os.kill(os.getpid(), signal.SIGKILL)

    with cluster(workers=2, grace=0) as c:
        with pytest.raises(TaskFailed, match="worker-1: SIGKILL"):
            c.run(train, files, write_or_die)
        before: dict[str, Steps] = {name: dict(json.loads(Path(files, f"{name}.json").read_text())) for name in c.tasks}
        c.restart()
        after = c.run(train, files)
    all_steps = []
    for name, (steps, total) in after.items():
        assert total == 3 * sum(range(24))
        assert [*steps] == [*range(KILLED_IN, 12)]
        assert before[name][KILLED_IN] == steps[KILLED_IN], f"{name} got other elements when it went on"
        all_steps.append({**before[name], **steps})
    for epoch in range(3):
        of_epoch = range(4 * epoch, 4 * epoch + 4)
        assert sorted(number for taken in all_steps for step in of_epoch for number in taken[step]) == [*range(24)]
    assert all_steps[0][0] != all_steps[0][4], "the epochs have one order"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_of_the_guide_to_distributed_input_run_unchanged(orch: Orch, tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    (tmp_path / "train.py").write_text(sample.text)
    done = orch("up", "train.py", *sample.words(2), timeout=300, check=0)
    assert done.out.count(DONE) == sum(sample.tasks(2).values())


def share_paths(strategy: Any, directory: str) -> dict[str, Any]:
    """In each of two workers: SavedModels and a cache at one path."""
    import keras
    import numpy as np
    import tensorflow as tf

    index = strategy.cluster_resolver.task_id
    module = tf.Module()
    module.number = tf.Variable(float(index))
    loaded = []
    for version in range(4):
        tf.saved_model.save(module, f"{directory}/module/{version}")
        loaded.append(float(tf.saved_model.load(f"{directory}/module/{version}").number))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(64), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 4)), np.ones(8), verbose=0)
    for version in range(4):
        model.export(f"{directory}/export/{version}", verbose=False)
        served = tf.saved_model.load(f"{directory}/export/{version}")
        assert served.serve(np.ones((1, 4), "float32")).shape == (1, 1)
    numbers = tf.data.Dataset.range(8).shard(2, index).cache(f"{directory}/cache")
    twice = [[int(number) for number in numbers] for _ in range(2)]
    return {"loaded": loaded, "twice": twice}


@pytest.mark.slow
def test_two_workers_write_to_one_path(tmp_path: Path) -> None:
    """By hand, a worker loads half of a SavedModel, and reads the share of the other worker from the cache."""
    with cluster(workers=2, timeout=300) as c:
        found = c.run(share_paths, str(tmp_path))
    import tensorflow as tf

    for version in range(4):
        assert float(tf.saved_model.load(f"{tmp_path}/module/{version}").number) == 0.0, "the chief's"
    assert found["worker-0"] == {"loaded": [0.0] * 4, "twice": [[0, 2, 4, 6]] * 2}
    assert found["worker-1"]["twice"] == [[1, 3, 5, 7]] * 2
    assert not list(tmp_path.rglob(".*"))
