"""A part of the contract: how the tasks share their input out, and what TensorFlow does with it."""

from __future__ import annotations

from typing import Literal

from .declare import setting
from .records import dataclass

_AS_TENSORFLOW = "TensorFlow's own"


@dataclass(frozen=True, slots=True)
class InputSettings:
    """What the spec says of the input of a task. None: the script's own word, or else TensorFlow's own choice. docs/input.md has more."""

    NAME = "input"
    SHORTHAND = "auto_shard"

    # tf.data.experimental.AutoShardPolicy
    auto_shard: Literal["auto", "file", "data", "hint", "off"] | None = setting(
        None,
        "How a dataset is shared out among the workers. file: each reads its share of the files; data: each reads all and keeps its share; "
        "hint: where the script has marked it; off: all read all; auto: file if the dataset reads files, else data.",
        example="data",
        words="the script's own, or else auto",
        flag="--auto-shard",
        metavar="auto|file|data|hint|off",
        label="the policies",
    )
    global_batch_size: int | None = setting(
        None,
        "How many elements all replicas of all workers take together in one step: worker.distribute makes batches of that size.",
        example="256",
        words="what the script batches by",
        flag="--global-batch-size",
        least=1,
    )
    drop_remainder: bool | None = setting(
        None, "Leave out a last batch that is not full, where worker.distribute makes the batches.", example="true", words="false"
    )
    prefetch: int | None = setting(
        None,
        "How many batches each worker reads ahead, besides those that TensorFlow fetches to the devices. -1: tf.data finds the number.",
        example="-1",
        words=_AS_TENSORFLOW,
        least=-1,
        most=1_000_000,
    )
    # These three: tf.distribute.InputOptions
    fetch_to_device: bool | None = setting(
        None, "Bring each batch to the replica's device before it is asked for.", example="false", words=f"true ({_AS_TENSORFLOW})"
    )
    per_replica_buffer_size: int | None = setting(
        None,
        "How many batches are brought to each replica's device ahead.",
        example="2",
        words=f"1 ({_AS_TENSORFLOW})",
        least=0,
        most=1_000_000,
    )
    replication_mode: Literal["per_worker", "per_replica"] | None = setting(
        None,
        "Whether a dataset's function is called once for each worker or once for each replica.",
        example="per_replica",
        words=f"per_worker ({_AS_TENSORFLOW})",
        label="the modes",
    )
    shuffle_seed: int | None = setting(
        None,
        "The seed for the order of files, so that all workers list them in the same order.",
        example="1",
        words="none",
    )
    # tf.data.Options.deterministic
    deterministic: bool | None = setting(
        None, "Give the elements in the same order each time, at some cost in speed.", example="true", words=f"true ({_AS_TENSORFLOW})"
    )
    files: tuple[str, ...] = setting(
        (),
        "The files that the script reads, as patterns that start at the working directory; orch looks how they can be shared out.",
        example='["data/*.tfrecord"]',
        words="nobody has said",
    )
    apply: bool = setting(
        True,
        "Apply this to the datasets of a script that does not call worker.distribute, where the script itself has said nothing.",
    )
