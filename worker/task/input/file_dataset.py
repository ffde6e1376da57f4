"""`worker.files`: files as a dataset, with the steps of the pipeline in the right order.

TensorFlow's guide to distributed input lists common mistakes: workers list the files in different orders, a shuffle comes before the
sharding, a policy does not fit the number of files, the input of one worker ends before the others'. Here the order is: list, shard,
repeat, shuffle, interleave, take, decode, batch, prefetch. The dataset of an epoch is made from the epoch's number. So the order depends
only on the seed and this number, and a training that continues (`start`) begins in the right epoch without reading the epochs before.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from ...data_files import element_counts, matching
from ...words import count_of
from ..context import context
from ..import_hooks import print_once
from ..strategy import strategy_builder
from . import input_policy

MOST_COUNTED = 1 << 30
"""Without the argument `count`, the elements are counted if all files together have at most this many bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The part of the input that this task reads."""

    files: tuple[str, ...]
    by: str
    """``file``: all elements of `files`; ``data``: one of `workers` elements of `files`; ``off``: all elements of all files."""
    workers: int
    index: int
    """The number of this worker, from 0."""
    elements: int | None = None
    """The number of elements in an epoch; None: not counted, all elements."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """The arguments of `worker.files`, completed by the section `input`."""

    reader: str | Callable[[Any], Any]
    compression: str
    batch: int | None
    repeat: int | None
    shuffle: int
    seed: int | None
    start: int
    shard: str | None
    drop_remainder: bool
    deterministic: bool | None
    prefetch: int | None
    cycle_length: int
    count: bool | None


def dataset(pattern: Any, decode: Callable[..., Any] | None, input_context: Any, **given: Any) -> Any:
    """See `worker.files`."""
    import tensorflow as tf

    wishes = _complete(given)
    names = list_files(context().settings.input.files if pattern is None else pattern)
    workers, index = strategy_builder.input_pipelines(context())
    if input_context is not None:
        workers, index = input_context.num_input_pipelines, input_context.input_pipeline_id
    _check(wishes, workers, input_context)
    of_step = (wishes.batch or workers) // workers
    share = _share(names, wishes, workers, index, of_step)
    # TensorFlow divides each batch among the workers, and each worker has cut its share to whole steps already.
    is_cut = share.elements is not None and wishes.repeat is not None and workers > 1 and input_context is None

    found = _elements(share, wishes, of_step, knows_length=not is_cut)
    if decode is not None:
        found = found.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=wishes.deterministic)
    if wishes.batch is not None:
        size = wishes.batch if input_context is None else input_context.get_per_replica_batch_size(wishes.batch)
        found = found.batch(size, drop_remainder=wishes.drop_remainder and not is_cut)  # a whole batch is the work of several steps
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if wishes.shuffle:
        # The shuffle of an epoch has a seed, but TensorFlow counts it as stateful (DummySeedGenerator) and would not save the iterator.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    found = found.with_options(options).prefetch(tf.data.AUTOTUNE if wishes.prefetch is None else wishes.prefetch)
    setattr(found, input_policy.SHARED, True)
    return found


def _complete(given: dict[str, Any]) -> Wishes:
    """The arguments of `worker.files`; those that were not given come from the section `input`."""
    settings = context().settings.input
    defaults: dict[str, Any] = {"batch": settings.global_batch_size, "seed": settings.shuffle_seed, "shard": settings.auto_shard}
    defaults |= {"prefetch": settings.prefetch, "deterministic": settings.deterministic, "drop_remainder": bool(settings.drop_remainder)}
    completed: dict[str, Any] = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    wishes = Wishes(**completed)
    return dataclasses.replace(wishes, repeat=None) if wishes.repeat == -1 else wishes  # as in tf.data: without end


def _elements(share: Share, wishes: Wishes, of_step: int, *, knows_length: bool) -> Any:
    """The dataset of the elements of all epochs, before `decode`.

    `knows_length`: the dataset has its number of elements as its cardinality. Keras takes the number of batches for the number of steps.
    """
    import tensorflow as tf

    first, skipped = divmod(wishes.start * of_step, share.elements) if share.elements else (0, wishes.start * of_step)
    # If each worker keeps some of all elements, all workers must read the files in one order.
    seed = 0 if wishes.seed is None and share.by == "data" else wishes.seed
    epoch = _epochs(share, wishes, int.from_bytes(os.urandom(4), "little") if seed is None else seed)
    if wishes.repeat is None:
        found = tf.data.Dataset.counter(first).flat_map(epoch)
        found = found.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    else:
        found = tf.data.Dataset.range(first, max(first, wishes.repeat)).flat_map(epoch)
        if share.elements is not None and knows_length:
            found = found.apply(tf.data.experimental.assert_cardinality(max(0, wishes.repeat - first) * share.elements))
    return found.skip(skipped) if skipped else found


def _epochs(share: Share, wishes: Wishes, seed: int) -> Callable[[Any], Any]:
    """A function from the number of an epoch to the dataset of its elements, before `decode`."""
    import tensorflow as tf

    def epoch(number: Any) -> Any:
        files = tf.constant(share.files)
        if wishes.shuffle:
            files = tf.random.experimental.stateless_shuffle(files, tf.stack([tf.constant(seed, tf.int64), number]))
        read = tf.data.Dataset.from_tensor_slices(files).interleave(
            _reader(wishes),
            cycle_length=min(wishes.cycle_length, len(share.files)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=wishes.deterministic is not False or share.by == "data",
        )
        if share.by == "data":
            read = read.shard(share.workers, share.index)
        if wishes.shuffle:
            read = read.shuffle(wishes.shuffle, seed=seed + number, reshuffle_each_iteration=False)
        return read if share.elements is None else read.take(share.elements)

    return epoch


def _reader(wishes: Wishes) -> Callable[[Any], Any]:
    import tensorflow as tf

    if callable(wishes.reader):
        return wishes.reader
    kind = tf.data.TFRecordDataset if wishes.reader == "tfrecord" else tf.data.TextLineDataset
    return lambda name: kind(name, compression_type=wishes.compression)


# --- files and shares --------------------------------------------------------------------------------


def list_files(patterns: Any) -> list[str]:
    """The files that fit these patterns, sorted, each once. Raises `FileNotFoundError`, `ValueError`."""
    import tensorflow as tf

    patterns = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    if not patterns:
        raise ValueError("worker.files: which files? name a pattern, or set input.files in the spec")
    found: set[str] = set()
    for pattern in map(os.fspath, patterns):
        names = tf.io.gfile.glob(pattern) if "://" in pattern else [name for name in matching(pattern) if os.path.isfile(name)]
        if not names:
            raise FileNotFoundError(f"worker.files: no file fits {pattern!r} (the working directory is {os.getcwd()})")
        found.update(names)
    return sorted(found, key=os.fsencode)


def _check(wishes: Wishes, workers: int, input_context: Any) -> None:
    import tensorflow as tf

    if wishes.reader not in ("tfrecord", "lines") and not callable(wishes.reader):
        raise ValueError(f"worker.files: reader is 'tfrecord', 'lines' or a function of a file's name, and not {wishes.reader!r}")
    if wishes.shard not in (None, "auto", "file", "data", "off"):
        problem = f"shard (input.auto_shard) is auto, file, data or off here, and not {wishes.shard}"
        raise ValueError(f"worker.files shares the files out itself: {problem}")
    if wishes.repeat is not None and wishes.repeat < 0:
        raise ValueError(f"worker.files: repeat={wishes.repeat}: it is the number of epochs; None (or -1): for ever")
    if wishes.start < 0:
        raise ValueError(f"worker.files: start={wishes.start}: it is the number of batches that were trained, 0 or more")
    replicas = input_context.num_replicas_in_sync if input_context is not None else workers
    if input_context is None and tf.distribute.has_strategy():
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if wishes.batch is not None and wishes.batch < replicas:
        raise ValueError(f"worker.files: a global batch of {wishes.batch} for {count_of(replicas, 'replica')}: make it {replicas} or more")
    if wishes.start and (wishes.batch is None or wishes.batch % workers):
        raise ValueError(f"worker.files: start={wishes.start} counts batches: say batch=, a multiple of {workers}, the number of workers")
    if wishes.start and (wishes.deterministic is False or (wishes.shuffle and wishes.seed is None)):
        raise ValueError(
            f"worker.files: start={wishes.start} needs an order that comes again: "
            "say seed= (input.shuffle_seed), and not deterministic=False"
        )


def _share(names: Sequence[str], wishes: Wishes, workers: int, index: int, of_step: int) -> Share:
    """The part of the files that this task reads."""
    by = wishes.shard or "auto"
    if by == "file" and len(names) < workers:
        raise ValueError(
            f"worker.files: {count_of(len(names), 'file')} for {workers} workers, and shard is file: "
            f"worker {len(names)} would get nothing; say data, or make {workers} files or more"
        )
    if by == "auto":
        by = "file" if len(names) >= workers else "data"
    counts = _counts(names, wishes)
    share = Share(tuple(names[index::workers] if by == "file" else names), by, workers, index)
    held: list[int] = []
    if counts and by == "file":
        held = [sum(counts[other::workers]) for other in range(workers)]
    elif counts:
        held = [sum(counts) // (workers if by == "data" else 1)]
    if held:
        taken = min(held) // of_step * of_step if wishes.drop_remainder else min(held)
        if not taken:
            raise ValueError(f"worker.files: {_describe_lack(sum(counts or ()), held, share, of_step if wishes.drop_remainder else 1)}")
        share = dataclasses.replace(share, elements=taken)
    _print_summary(names, counts, share, held)
    return share


def _describe_lack(total: int, held: Sequence[int], share: Share, least: int) -> str:
    """Why a worker would get none of `total` elements, and what helps. `least`: the elements that each worker needs for one step."""
    if not total:
        return "there is no element in these files: " + ", ".join(share.files[:3]) + ", …" * (len(share.files) > 3)
    ways = ["say shard='data'"] if share.by == "file" and total // share.workers >= least else []
    if min(held):
        ways.append(f"say a batch of {min(held) * share.workers} or less, or drop_remainder=False")
    what = f"worker {held.index(min(held))} would get {count_of(min(held), 'element')} of {total} in an epoch"
    return f"{what}: {', or '.join(ways) or 'write more elements, or take fewer workers'}"


def _counts(names: Sequence[str], wishes: Wishes) -> list[int] | None:
    """The number of elements of each file; None: they are not counted. Raises ValueError for a damaged file."""
    # `element_counts` takes lines that are compressed with ZLIB for text.
    known = wishes.reader == "tfrecord" or (wishes.reader == "lines" and wishes.compression != "ZLIB")
    known = known and not any("://" in name for name in names)
    if wishes.count is False or not known or (wishes.count is None and sum(map(os.path.getsize, names)) > MOST_COUNTED):
        if wishes.count:
            raise ValueError("worker.files: count=True is for files of this host: TFRecords, or lines of text")
        return None
    return [_count(name, "tfrecord" if wishes.reader == "tfrecord" else "text") for name in names]


def _count(name: str, kind: str) -> int:
    with open(name, "rb") as file:
        try:
            return element_counts.count(file, os.fstat(file.fileno()).st_size, kind) or 0
        except element_counts.Damaged as error:
            raise ValueError(f"worker.files: {name}: {error}") from None


def _print_summary(names: Sequence[str], counts: Sequence[int] | None, share: Share, held: Sequence[int]) -> None:
    """Print one line about the files and how they are divided."""
    what = f"{count_of(len(names), 'file')}" + (f" with {sum(counts):,} elements" if counts else "")
    reads = {"off": "all of them", "data": f"all of them and keeps one element of {share.workers}", "file": "its own share of them"}
    how = f"; each of {share.workers} workers reads {reads[share.by]}" if share.workers > 1 else ""
    if held and share.elements != max(held) and share.by == "file" and share.workers > 1:
        each = f"of which each epoch takes {share.elements:,}: so all end together"
        how += f"; the shares have {min(held):,} to {max(held):,} elements, {each}"
    if not counts and share.workers > 1:
        how += "; the elements are not counted, so one worker may end before the others"
    print_once(f"input: worker.files: {what}{how}")
