"""Programs whose datasets have another form than the planner of ``orch shards`` knows, and what TensorFlow makes of each, in a task.

The files of a case are TensorFlow's: `COUNTS` lines each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.model.planning.sharding import Applied, File, Sharding, Tally, batches, read_by

COUNTS = (5, 7, 6, 4)
BATCH = 4
WORKERS = 2
POLICIES: tuple[Applied, ...] = ("file", "data", "off")

_FIRST, _OTHERS = "TextLineDataset(files[:1])", "TextLineDataset(files[1:])"
USUAL = {
    "usual": "TextLineDataset(files).batch(4)",
    "usual map": "TextLineDataset(files).map(lambda line: line).shuffle(1, seed=1).batch(4).prefetch(1)",
    "usual interleave": "Dataset.from_tensor_slices(files).interleave(TextLineDataset, cycle_length=1).batch(4)",
    "usual cache": "TextLineDataset(files).batch(3).unbatch().batch(4).cache()",
}
CASES = {
    **USUAL,
    "joined": f"{_FIRST}.concatenate({_OTHERS}).batch(4)",
    "chosen": f"Dataset.choose_from_datasets([{_FIRST}, {_OTHERS}], Dataset.range(2).repeat(11)).batch(4)",
    "sampled": f"Dataset.sample_from_datasets([{_FIRST}, {_OTHERS}], [0.5, 0.5], seed=1).batch(4)",
    "repeated list": "Dataset.from_tensor_slices(files[:3]).repeat(2).interleave(TextLineDataset, cycle_length=1).batch(4)",
    "windows": "TextLineDataset(files).window(2, drop_remainder=True).flat_map(lambda lines: lines.batch(2)).batch(4)",
    "map after batch": "TextLineDataset(files).batch(4).map(lambda lines: lines)",
    "enumerate after batch": "TextLineDataset(files).batch(4).enumerate().map(lambda number, lines: lines)",
    "parallel batch": "TextLineDataset(files).batch(4, num_parallel_calls=2)",
    "buckets": "TextLineDataset(files).bucket_by_sequence_length(lambda line: 1, [2], [4, 4])",
    "part": "TextLineDataset(files).take(9).batch(4)",
    "rest": "TextLineDataset(files).skip(3).batch(4)",
    "own share": "TextLineDataset(files).shard(2, 0).batch(4)",
    "batches of batches": "TextLineDataset(files).batch(2).batch(4)",
    "batches of files": "Dataset.from_tensor_slices(files).interleave(lambda file: TextLineDataset(file).batch(4))",
    "twice each": "TextLineDataset(files).flat_map(lambda line: Dataset.from_tensors(line).repeat(2)).batch(4)",
}
"""The expression of each dataset, with `files`, `tf`, `Dataset` and `TextLineDataset`."""


def write_files(directory: Path) -> list[str]:
    for number, count in enumerate(COUNTS):
        (directory / f"{number}.txt").write_text("".join(f"{number}.{line}\n" for line in range(count)))
    return [str(directory / f"{number}.txt") for number in range(len(COUNTS))]


def planned(policy: Applied) -> list[list[int]]:
    """The sizes of the batches of each worker, as the planner says for the files alone."""
    sharding, found = Sharding(policy, WORKERS, 1, BATCH), Tally(WORKERS)
    for number, count in enumerate(COUNTS):
        found.add(File(str(number), 0, count))
    made = [batches(sharding, read_by(sharding, found, worker), worker) for worker in range(WORKERS)]
    return [[len(part) for step in of for part in step] for of in made]


def ask(cases: dict[str, str], files: list[str], policies: tuple[Applied, ...]) -> dict[tuple[str, Applied], Any]:
    """In a task: the sizes of the batches of two workers, as TensorFlow makes them; its message where TensorFlow fails."""
    import tensorflow as tf
    from tensorflow.python.distribute import input_lib, input_util

    names = {"tf": tf, "files": files, "Dataset": tf.data.Dataset, "TextLineDataset": tf.data.TextLineDataset}
    devices = ["/device:CPU:0", "/device:CPU:1"]
    strategy = tf.distribute.MirroredStrategy(devices)
    inputs = input_lib.InputWorkers([(device, (device,)) for device in devices])
    found: dict[tuple[str, Applied], Any] = {}
    for case, text in cases.items():
        for policy in policies:
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
            dataset = eval(text, names).with_options(options)
            try:
                made = input_util.get_distributed_dataset(dataset, inputs, strategy, len(devices))
                found[case, policy] = [[int(tf.shape(batch)[0]) for batch in own] for own in made._cloned_datasets]
            except tf.errors.OpError as error:
                found[case, policy] = str(error)
    return found
