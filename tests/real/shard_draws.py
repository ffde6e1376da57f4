"""Draws of datasets and of ways to distribute them, what the planner says of each, and the functions that ask TensorFlow, in tasks.

A draw has the fields of `Sharding`, and `files`, numbers of files of the pool. Such a file has `number % 8` lines, each its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.model.planning.sharding import File, Sharding, ShardPolicy, Tally, batches, read_by, steps

POOL = 40

Draw = dict[str, Any]
Batches = list[list[list[str]]]


def takes_file(sharding: Sharding, index: int, worker: int) -> bool:
    """Whether a worker reads the file at this place of the list."""
    return sharding.applied != "file" or index % sharding.workers == worker


def tally(files: Iterable[File], workers: int) -> Tally:
    found = Tally(workers)
    for file in files:
        found.add(file)
    return found


def write_pool(directory: Path) -> None:
    for number in range(POOL):
        (directory / f"{number}.txt").write_text("".join(f"{number}.{line}\n" for line in range(number % 8)))


def draw(random: random.Random, *, workers: int, replicas: int, all_have_files: bool) -> Draw:
    """`all_have_files`: no worker is left without a file, which TensorFlow refuses in some workers and not in others."""
    has_reader = random.random() < 0.8
    policy: ShardPolicy = random.choice(["auto", "auto", "file", "data", "hint", "off"])
    if not has_reader and policy in ("file", "hint"):
        policy = "data"
    files = [random.randrange(POOL) for _ in range(random.randrange(workers if all_have_files else 1, 3 * workers + 2))]
    fewest = max(1, sum(number % 8 for number in files) // 8)  # not many more steps than are needed to see something
    sharding = Sharding(
        policy,
        workers,
        replicas,
        batch=random.randint(fewest, fewest + 2 * workers * replicas),
        drop_remainder=random.random() < 0.3,
        has_reader=has_reader,
    )
    return {**asdict(sharding), "files": files}


def sharding_of(draw: Draw) -> Sharding:
    return Sharding(**{key: value for key, value in draw.items() if key != "files"})


def _files(draw: Draw) -> list[File]:
    return [File(str(number), 0, number % 8) for number in draw["files"]]


def _seen(draw: Draw, worker: int) -> list[str]:
    sharding = sharding_of(draw)
    own = [number for place, number in enumerate(draw["files"]) if takes_file(sharding, place, worker)]
    return [f"{number}.{line}" for number in own for line in range(number % 8)]


def _elements(step: tuple[range, ...], pool: list[str]) -> list[list[str]]:
    return [[pool[place] for place in part] for part in step]


def expected_of_worker(draw: Draw, worker: int) -> Batches | str:
    """What the planner says of one worker by itself, or that TensorFlow refuses there."""
    sharding, found = sharding_of(draw), tally(_files(draw), draw["workers"])
    if sharding.applied == "file" and worker < found.files < sharding.workers:
        return "error"
    pool = _seen(draw, worker)
    return [_elements(step, pool) for step in batches(sharding, read_by(sharding, found, worker), worker)]


def expected_of_all(draw: Draw) -> list[Batches]:
    """What the planner says of an epoch: for each worker, to the end of the longest."""
    sharding, found = sharding_of(draw), tally(_files(draw), draw["workers"])
    pools = [_seen(draw, worker) for worker in range(sharding.workers)]
    rows = list(steps(sharding, found))
    return [[_elements(row[worker], pool) for row in rows] for worker, pool in enumerate(pools)]


# --- in tasks ------------------------------------------------------------------------------------


def _dataset(draw: Draw, directory: str) -> Any:
    import tensorflow as tf

    chosen = [f"{directory}/{number}.txt" for number in draw["files"]]
    if not draw["has_reader"]:
        lines = [f"{number}.{line}" for number in draw["files"] for line in range(number % 8)]
        made = tf.data.Dataset.from_tensor_slices(tf.constant(lines, tf.string))
    elif draw["policy"] == "hint":
        made = tf.data.Dataset.from_tensor_slices(chosen).shard(tf.data.experimental.SHARD_HINT, 0).flat_map(tf.data.TextLineDataset)
    else:
        made = tf.data.TextLineDataset(chosen)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[draw["policy"].upper()]
    return made.batch(draw["batch"], drop_remainder=draw["drop_remainder"]).with_options(options)


def _texts(batch: Any) -> list[str]:
    return [text.decode() for text in batch.numpy().tolist()]


def _of_replicas(strategy: Any, step: Any) -> list[list[str]]:
    return [_texts(one) for one in strategy.experimental_local_results(step)]


def ask_workers(strategy: Any, draws: list[Draw], directory: str) -> list[Batches]:
    answers = []
    for draw in draws:
        steps = strategy.experimental_distribute_dataset(_dataset(draw, directory))
        answers.append([_of_replicas(strategy, step) for step in steps])
    return answers


def list_shuffled(strategy: Any, directory: str) -> list[str]:
    """The elements of seven files that this worker gets, if TensorFlow has shuffled their list."""
    import tensorflow as tf

    listed = tf.data.Dataset.list_files([f"{directory}/{number}.txt" for number in range(1, 8)], shuffle=True)
    steps = strategy.experimental_distribute_dataset(listed.interleave(tf.data.TextLineDataset).batch(9))
    return [text for step in steps for part in _of_replicas(strategy, step) for text in part]


def ask_inside(draws: list[Draw], directory: str) -> list[list[Batches | str]]:
    """All workers and replicas of each draw in this process: what TensorFlow makes for each worker."""
    import tensorflow as tf
    from tensorflow.python.distribute import input_lib, input_util

    mirrored: dict[int, Any] = {}

    def ask(draw: Draw) -> list[Batches | str]:
        workers, replicas = draw["workers"], draw["replicas"]
        devices = [f"/device:CPU:{number}" for number in range(workers * replicas)]
        if len(devices) not in mirrored:
            mirrored[len(devices)] = tf.distribute.MirroredStrategy(devices)
        strategy = mirrored[len(devices)]
        inputs = input_lib.InputWorkers([(devices[0], tuple(devices[number * replicas :][:replicas])) for number in range(workers)])
        made = input_util.get_distributed_dataset(_dataset(draw, directory), inputs, strategy, workers * replicas)
        found: list[Batches | str] = []
        for own in made._cloned_datasets:
            try:
                parts = [_texts(batch) for batch in own]
            except tf.errors.InvalidArgumentError as error:
                if "FILE based sharding" not in str(error):
                    raise
                found.append("error")
                continue
            steps = [parts[number:][:replicas] for number in range(0, len(parts), replicas)]
            found.append([step + [[]] * (replicas - len(step)) for step in steps])
        return found

    return [ask(draw) for draw in draws]


def write_and_read(directory: str) -> dict[str, Any]:
    """For the counter of elements: what TensorFlow itself writes and reads, and what it says of a file that was cut short."""
    import tensorflow as tf

    for compression in ("", "GZIP", "ZLIB"):
        for count in (0, 1, 900):
            with tf.io.TFRecordWriter(f"{directory}/{compression}{count}.tfrecord", compression) as file:
                for number in range(count):
                    file.write(os.urandom(number % 300))
    try:
        list(tf.data.TFRecordDataset(f"{directory}/cut.records"))
        cut = ""
    except tf.errors.DataLossError as error:
        cut = str(error)
    return {
        "lines": sum(1 for _ in tf.data.TextLineDataset(f"{directory}/lines.text")),
        "own": sum(1 for _ in tf.data.TFRecordDataset(f"{directory}/own.records")),
        "cut": cut,
        "listed": [name.decode() for name in tf.data.Dataset.list_files(f"{directory}/*.txt", shuffle=False).as_numpy_iterator()],
    }
