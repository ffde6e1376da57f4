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
from types import SimpleNamespace
from typing import Any

from ...formats import element_counts
from ...formats.data_files import matching
from ...values.words import count_of
from .. import failure
from ..context import context
from ..observe import recorder
from ..patches.import_hooks import print_once
from ..strategy import strategy_builder
from . import input_policy, shuffle_order
from .worker_parts import WorkerParts

MOST_COUNTED = 1 << 30
"""Without the argument `count`, the elements are counted if all files together have at most this many bytes."""
MOST_SHUFFLED = 1 << 30
"""Elements in the buffer of a shuffle: TensorFlow 2.22 refuses more, and earlier releases abort the process."""
_FROM_SETTINGS = {
    "batch": "global_batch_size",
    "seed": "shuffle_seed",
    "shard": "auto_shard",
    **{name: name for name in ("drop_remainder", "deterministic", "prefetch")},
}
"""The arguments of `worker.files` that the section `input` completes, with the names of its settings."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerShare:
    """The part of the input that this task reads."""

    files: tuple[str, ...]
    by: str
    """``file``: all elements of `files`; ``data``: one of `workers` elements of `files`; ``off``: all elements of all files."""
    workers: int
    index: int
    """The number of this worker, from 0."""
    elements: tuple[int, ...] | None = None
    """The number of elements in each epoch, from the first one on and again; None: not counted, all elements."""
    end: int | None = None
    """The number of elements in all epochs together; None: all elements of all epochs."""


def dataset(pattern: Any, decode: Callable[..., Any] | None, input_context: Any, **given: Any) -> Any:
    """See `worker.files`."""
    import tensorflow as tf

    task = context()
    for name, setting in _FROM_SETTINGS.items():
        if given[name] is None:
            given[name] = getattr(task.settings.input, setting)
    input_policy.starts_given += given["start"] is not None
    given["start"] = given["start"] or 0
    wishes = SimpleNamespace(**given)
    if wishes.repeat == -1:  # as in tf.data: without end
        wishes.repeat = None
    names = list_files(task.settings.input.files if pattern is None else pattern)
    workers, index = strategy_builder.input_pipelines(task)
    if input_context is not None:
        workers, index = input_context.num_input_pipelines, input_context.input_pipeline_id
    _check(wishes, workers, input_context)
    parts = WorkerParts(wishes.batch or workers, workers, 1 if input_context is not None or wishes.batch is None else _replicas(workers))
    _check_start(wishes, parts)
    share = _share(names, wishes, parts, index)
    if workers > 1:
        recorder.note_files(failure.calling_line())
    # TensorFlow divides each batch among the workers, and each worker has cut its share to whole steps already.
    is_cut = share.elements is not None and wishes.repeat is not None and workers > 1 and input_context is None

    found = _elements(share, wishes, parts.batch // workers, knows_length=not is_cut)
    if is_cut and share.end is not None:
        found = found.take(share.end)
    if decode is not None:
        found = found.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=wishes.deterministic)
    if wishes.batch is not None:
        size = wishes.batch if input_context is None else input_context.get_per_replica_batch_size(wishes.batch)
        found = found.batch(size, drop_remainder=bool(wishes.drop_remainder) and not is_cut)  # a whole batch is the work of several steps
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if wishes.shuffle:
        # The shuffle of an epoch has a seed, but TensorFlow counts it as stateful (DummySeedGenerator) and would not save the iterator.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    found = found.with_options(options).prefetch(tf.data.AUTOTUNE if wishes.prefetch is None else wishes.prefetch)
    setattr(found, input_policy.SHARED, True)
    setattr(found, input_policy.START, wishes.start)
    return found


def _elements(share: WorkerShare, wishes: SimpleNamespace, of_step: int, *, knows_length: bool) -> Any:
    """The dataset of the elements of all epochs, before `decode`.

    `knows_length`: the dataset has its number of elements as its cardinality. Keras takes the number of batches for the number of steps.
    """
    import tensorflow as tf

    of_epoch = share.elements[0] if share.elements else None
    first, skipped = divmod(wishes.start * of_step, of_epoch) if of_epoch else (0, wishes.start * of_step)
    # If each worker keeps some of all elements, all workers must read the files in one order.
    seed = 0 if wishes.seed is None and share.by == "data" else wishes.seed
    epoch = _epochs(share, wishes, _draw_seed(share) if seed is None else seed)
    if wishes.repeat is None:
        found = tf.data.Dataset.counter(first).flat_map(epoch)
        length = tf.data.INFINITE_CARDINALITY
    else:
        found = tf.data.Dataset.range(first, max(first, wishes.repeat)).flat_map(epoch)
        length = max(0, wishes.repeat - first) * of_epoch if of_epoch and knows_length else tf.data.UNKNOWN_CARDINALITY
    if length != tf.data.UNKNOWN_CARDINALITY:
        found = found.apply(tf.data.experimental.assert_cardinality(length))
    return found.skip(skipped) if skipped else found


def _draw_seed(share: WorkerShare) -> int:
    """A seed that is another one in each run, and the same in all attempts of a run."""
    if not (os.environ.get("ORCH_RUN_ID") or shuffle_order.is_kept()):
        return int.from_bytes(os.urandom(4), "little")
    return shuffle_order.draw_seed(f"worker.files {share.index}") % (1 << 32)


def _epochs(share: WorkerShare, wishes: SimpleNamespace, seed: int) -> Callable[[Any], Any]:
    """A function from the number of an epoch to the dataset of its elements, before `decode`."""
    import tensorflow as tf

    def read_records(name: Any) -> Any:
        kind = tf.data.TFRecordDataset if wishes.reader == "tfrecord" else tf.data.TextLineDataset
        return kind(name, compression_type=wishes.compression)

    def epoch(number: Any) -> Any:
        files = tf.constant(share.files)
        if wishes.shuffle:
            files = tf.random.experimental.stateless_shuffle(files, tf.stack([tf.constant(seed, tf.int64), number]))
        read = tf.data.Dataset.from_tensor_slices(files).interleave(
            wishes.reader if callable(wishes.reader) else read_records,
            cycle_length=min(wishes.cycle_length, len(share.files)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=wishes.deterministic is not False or share.by == "data",
        )
        # An elastic cluster shuffles, and cuts the epoch to whole global batches, before the elements are divided: any number of workers
        # reads the same global batches.
        if share.by == "data" and not input_policy.is_elastic():
            read = read.shard(share.workers, share.index)
        if wishes.shuffle:
            read = read.shuffle(wishes.shuffle, seed=seed + number, reshuffle_each_iteration=False)
        if share.by == "data" and input_policy.is_elastic():
            if share.elements is None:
                whole = read.window(wishes.batch, drop_remainder=True)
                read = whole.flat_map(lambda *parts: tf.data.Dataset.zip(parts if len(parts) > 1 else parts[0]))
            read = read.shard(share.workers, share.index)
        if share.elements is None:
            return read
        return read.take(tf.constant(share.elements, tf.int64)[number % len(share.elements)])

    return epoch


# --- files and shares --------------------------------------------------------------------------------


def list_files(patterns: Any) -> list[str]:
    """The files that fit these patterns, sorted, each once. Raises `FileNotFoundError`, `ValueError`."""
    import tensorflow as tf

    patterns = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    if not patterns:
        raise ValueError("worker.files: which files? name a pattern, or set input.files in orch.yaml")
    found: set[str] = set()
    for pattern in map(os.fspath, patterns):
        names = tf.io.gfile.glob(pattern) if "://" in pattern else [name for name in matching(pattern) if os.path.isfile(name)]
        if not names:
            raise FileNotFoundError(f"worker.files: no file fits {pattern!r} (the working directory is {os.getcwd()})")
        found.update(names)
    return sorted(found, key=os.fsencode)


def _check(wishes: SimpleNamespace, workers: int, input_context: Any) -> None:
    """Raises ValueError for arguments that cannot work."""
    import tensorflow as tf

    replicas = input_context.num_replicas_in_sync if input_context is not None else workers
    if input_context is None and tf.distribute.has_strategy():
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
    start, batch = wishes.start, wishes.batch
    problem = ""
    if wishes.reader not in ("tfrecord", "lines") and not callable(wishes.reader):
        problem = f"reader is 'tfrecord', 'lines' or a function of a file's name, and not {wishes.reader!r}"
    elif wishes.shard not in (None, "auto", "file", "data", "off"):
        problem = f"shard (input.auto_shard) is auto, file, data or off here, and not {wishes.shard}"
    elif wishes.shard in ("file", "off") and input_policy.is_elastic():
        problem = f"shard {wishes.shard}: another number of workers (--workers MIN:MAX) would read other global batches; say data"
    elif batch is None and input_policy.is_elastic():
        problem = "another number of workers (--workers MIN:MAX) would read other global batches; say batch= (input.global_batch_size)"
    elif wishes.repeat is not None and wishes.repeat < 0:
        problem = f"repeat={wishes.repeat}: it is the number of epochs; None (or -1): for ever"
    elif wishes.shuffle > MOST_SHUFFLED:
        problem = f"shuffle={wishes.shuffle}: TensorFlow allocates so many places at once; make it {MOST_SHUFFLED} or fewer"
    elif start < 0:
        problem = f"start={start}: it is the number of batches that were trained, 0 or more"
    elif batch is not None and batch < replicas:
        problem = f"a global batch of {batch} for {count_of(replicas, 'replica')}: make it {replicas} or more"
    if problem:
        raise ValueError(f"worker.files: {problem}")


def _check_start(wishes: SimpleNamespace, parts: WorkerParts) -> None:
    """Raises ValueError if the elements before `start` are not known."""
    comes_again = wishes.batch is not None and parts.are_equal and wishes.deterministic is not False
    if wishes.start and not (comes_again and (wishes.seed is not None or not wishes.shuffle or shuffle_order.is_kept())):
        of = f"{parts.workers} workers" if parts.replicas == 1 else f"{parts.workers * parts.replicas} replicas"
        ways = f"say batch=, a multiple of the {of}, and seed= (input.shuffle_seed), and not deterministic=False"
        raise ValueError(f"worker.files: start={wishes.start} needs batches and an order that come again: {ways}")


def _replicas(workers: int) -> int:
    """The number of replicas of each worker: those of the strategy, or one for each GPU if the program has not said its strategy."""
    import tensorflow as tf

    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy_builder.built()
    if strategy is not None and strategy.num_replicas_in_sync % workers == 0:
        return int(strategy.num_replicas_in_sync) // workers
    return len(tf.config.list_logical_devices("GPU")) or 1


def _share(names: Sequence[str], wishes: SimpleNamespace, parts: WorkerParts, index: int) -> WorkerShare:
    """The part of the files that this task reads. Prints one line about how the files are divided."""
    workers = parts.workers
    by = wishes.shard or "auto"
    if by == "auto":
        by = "file" if len(names) >= workers and not input_policy.is_elastic() else "data"
    if by == "file" and len(names) < workers:
        raise ValueError(
            f"worker.files: {count_of(len(names), 'file')} for {workers} workers, and shard is file: "
            f"worker {len(names)} would get nothing; say data, or make {workers} files or more"
        )
    share = WorkerShare(tuple(names[index::workers] if by == "file" else names), by, workers, index)
    counts = _counts(names, wishes)
    what = count_of(len(names), "file")
    reads = {"off": "all of them", "data": f"all of them and keeps one element of {workers}", "file": "its own share of them"}
    how = f"; each of {workers} workers reads {reads[by]}" if workers > 1 else ""
    if counts is not None:
        what += f" with {sum(counts):,} elements"
        held = [sum(counts) // (workers if by == "data" else 1)] * workers
        if by == "file":
            held = [sum(counts[other::workers]) for other in range(workers)]
        least = min(held)
        # Batches of the elements of two epochs would be others for another number of workers.
        is_whole = bool(wishes.drop_remainder) or input_policy.is_elastic()
        taken = parts.of_epochs(held) if is_whole else [[least]] * workers
        if not all(map(all, taken)):
            raise ValueError(f"worker.files: {_describe_lack(share, held, sum(counts))}")
        end = parts.ends(least * wishes.repeat)[index] if wishes.repeat is not None and not is_whole else None
        share = dataclasses.replace(share, elements=tuple(taken[index]), end=end)
        numbers = {number for of_worker in taken for number in of_worker}
        if workers > 1 and by == "file" and numbers != {max(held)}:
            of_epoch = " or ".join(f"{number:,}" for number in sorted(numbers))
            how += f"; the shares have {least:,} to {max(held):,} elements, of which each epoch takes {of_epoch}: so all end together"
        if input_policy.is_elastic() and sum(counts) % parts.batch:
            whole = sum(of_worker[0] for of_worker in taken)
            how += f"; each epoch takes {whole:,}, which are whole global batches of {parts.batch}, for any number of workers"
    elif input_policy.is_elastic():
        how += "; each epoch ends with its last whole global batch, for any number of workers"
    elif workers > 1:
        how += "; the elements are not counted, so one worker may end before the others"
    print_once(f"input: worker.files: {what}{how}", is_note=True)
    return share


def _describe_lack(share: WorkerShare, held: Sequence[int], total: int) -> str:
    """Why a worker would take none of `total` elements, and what helps. `held`: the elements of each worker's share."""
    if not total:
        return "there is no element in these files: " + ", ".join(share.files[:3]) + ", …" * (len(share.files) > 3)
    ways = "say shard='data', take" if share.by == "file" else "take"
    what = f"worker {held.index(min(held))} would get {count_of(min(held), 'element')} of {total} in an epoch"
    return f"{what}: {ways} a smaller batch or fewer workers, or write more elements"


def _counts(names: Sequence[str], wishes: SimpleNamespace) -> list[int] | None:
    """The number of elements of each file; None: they are not counted. Raises ValueError for a damaged file."""
    # `element_counts` takes lines that are compressed with ZLIB for text.
    can_count = wishes.reader == "tfrecord" or (wishes.reader == "lines" and wishes.compression != "ZLIB")
    can_count = can_count and not any("://" in name for name in names)
    if wishes.count and not can_count:
        raise ValueError("worker.files: count=True is for files of this host: TFRecords, or lines of text")
    if wishes.count is False or not can_count or (wishes.count is None and sum(map(os.path.getsize, names)) > MOST_COUNTED):
        return None
    return [_count(name, "tfrecord" if wishes.reader == "tfrecord" else "text") for name in names]


def _count(name: str, kind: str) -> int:
    with open(name, "rb") as file:
        try:
            return element_counts.count(file, os.fstat(file.fileno()).st_size, kind) or 0
        except element_counts.Damaged as error:
            raise ValueError(f"worker.files: {name}: {error}") from None
