"""The section `input`: how the input is divided among the tasks, and how TensorFlow reads it."""

from __future__ import annotations

from typing import Literal

from ..values.fast_dataclass import dataclass
from .declare import setting

_AS_TENSORFLOW = "TensorFlow's own"


@dataclass(frozen=True, slots=True)
class InputSettings:
    """The input of a task. None: the script's own choice, or else TensorFlow's. docs/input.md has more."""

    NAME = "input"
    SHORTHAND = "auto_shard"

    # tf.data.experimental.AutoShardPolicy
    auto_shard: Literal["auto", "file", "data", "hint", "off"] | None = setting(
        None,
        "How a dataset is divided among the workers. file: each worker reads its share of the files; data: each worker "
        "reads all files and keeps its share of the elements; hint: as the script says with SHARD_HINT; off: each worker "
        "reads and keeps everything; auto: file if the dataset reads files, else data.",
        words="the script's own, or else auto",
        flag="--auto-shard",
    )
    global_batch_size: int | None = setting(
        None,
        "The number of elements that all replicas of all workers together take in one step. worker.distribute makes batches of this size.",
        words="the script's own batches",
        flag="--global-batch-size",
        least=1,
    )
    drop_remainder: bool | None = setting(
        None, "Leave out the last batch if it is not full. This holds for the batches that worker.distribute makes.", words="false"
    )
    prefetch: int | None = setting(
        None,
        "The number of batches that each worker reads ahead. -1: tf.data chooses the number. Batches that TensorFlow "
        "fetches to the devices are not counted.",
        words=_AS_TENSORFLOW,
        least=-1,
    )
    # The next three: tf.distribute.InputOptions
    fetch_to_device: bool | None = setting(
        None, "Copy each batch to the replica's device before the replica needs the batch.", words=f"true ({_AS_TENSORFLOW})"
    )
    per_replica_buffer_size: int | None = setting(
        None, "The number of batches that are copied to each replica's device ahead of time.", words=f"1 ({_AS_TENSORFLOW})"
    )
    replication_mode: Literal["per_worker", "per_replica"] | None = setting(
        None,
        "Call a dataset's function once for each worker or once for each replica.",
        words=f"per_worker ({_AS_TENSORFLOW})",
    )
    shuffle_seed: int | None = setting(
        None, "The seed for the order of files. With a seed, all workers list the files in the same order.", words="none"
    )
    # tf.data.Options.deterministic
    deterministic: bool | None = setting(
        None, "Give the elements in the same order in each run, at some cost in speed.", words=f"true ({_AS_TENSORFLOW})"
    )
    files: tuple[str, ...] = setting(
        (),
        "The files that the script reads, as patterns that start at the working directory. orch checks before the start "
        "how these files can be divided among the workers.",
        example='["data/*.tfrecord"]',
        words="none; orch checks nothing",
    )
    apply: bool = setting(
        True,
        "Apply these settings also to the datasets of a script that does not call worker.distribute. Settings that the "
        "script itself makes stay.",
    )
