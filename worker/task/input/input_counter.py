"""Counts the batches, elements and bytes of each replica of this task, and the seconds that the task waits for them.

All iterators of `tf.distribute` pass the batches of a step to one function (`_create_per_replica` in
tensorflow/python/distribute/input_lib.py). If a program iterates in Python, TensorFlow calls this function in each step, and the counter
adds a few numbers. If a `tf.function` iterates, as in Keras's `fit`, TensorFlow calls it once, during tracing, and the counter adds
operations to the graph that do the same. A thread reads the sums once a second, and adds a line to the task's reports if they have changed.

Training and validation are counted together. With TensorFlow 1's behaviour turned on, nothing is counted: those graphs run in sessions,
which orch does not see.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from ... import task_files
from ..import_hooks import named_like, print_once

POLL_S = 1.0
"""The time between two readings of the sums, in seconds."""
_HOST = "/device:CPU:0"
_STATE = "_orch_counter"
"""The attribute of TensorFlow's module that holds the counter. A task may import the module you are reading twice, under two names."""


def begin() -> None:
    """Start to count. Outside orch, and in a TensorFlow with other names, this does nothing."""
    directory = os.environ.get("ORCH_LOG_DIR")
    if not directory:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.distribute import input_lib

        if not hasattr(input_lib, _STATE):
            _install(input_lib, Counter(os.path.join(directory, task_files.REPORTS)))


def follow(model: Any) -> None:
    """Count the input of `fit` in a class of Keras's models."""
    real = model.fit

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin()
        _check_for_end(args[0] if args else kwargs.get("x"), kwargs)
        return real(self, *args, **kwargs)

    model.fit = named_like(real, fit)


def _check_for_end(data: Any, options: dict[str, Any]) -> None:
    import tensorflow as tf

    is_known = tf.executing_eagerly() and isinstance(data, tf.data.Dataset)
    is_endless = is_known and data.cardinality() == tf.data.INFINITE_CARDINALITY
    if is_endless and options.get("steps_per_epoch") is None:
        print_once("input: fit() has a dataset that repeats without end, and no steps_per_epoch: the first epoch has no end")


def _install(module: Any, counter: Counter) -> None:
    base = module.DistributedIteratorBase
    real_next, real_optional, real_create = base.get_next, base.get_next_as_optional, module._create_per_replica

    def get_next(self: Any, name: Any = None) -> Any:
        return counter.time(self._strategy, lambda: real_next(self, name))

    def get_next_as_optional(self: Any) -> Any:
        return counter.time(self._strategy, lambda: real_optional(self))

    def create_per_replica(value_list: Any, strategy: Any) -> Any:
        counter.count(strategy, value_list)
        return real_create(value_list, strategy)

    base.get_next = named_like(real_next, get_next)
    base.get_next_as_optional = named_like(real_optional, get_next_as_optional)
    module._create_per_replica = named_like(real_create, create_per_replica)
    setattr(module, _STATE, counter)


class Counter:
    """The sums of one process. `path`: the file of the task's reports."""

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        self._tf = tf
        self._path, self._pid = path, os.getpid()
        self._lock = threading.Lock()
        self._is_off = False
        """The counting has failed and was stopped."""
        self._waited, self._steps = 0.0, 0
        self._replicas: list[list[int]] = []
        """For each replica: batches that are not empty, elements, bytes."""
        self._handles: dict[int, Any] = {}
        """TensorFlow's variables for the sums of graphs. Key 0: seconds; key R: for R replicas the steps, then as `_replicas`."""
        self._last: tuple[float, float, int] | None = None
        """At the last reading: the time, the seconds waited, the steps."""
        self._moving_s, self._moving_waited_s = 0.0, 0.0
        """All time between readings with new steps, and the waiting time in it, in seconds."""
        threading.Thread(target=self._poll_forever, name="orch-input", daemon=True).start()
        atexit.register(self._poll)

    # --- while the program iterates ----------------------------------------------------------------

    def time(self, strategy: Any, give: Any) -> Any:
        """Call `give` and count its time. Returns the result of `give`, or raises its exception."""
        if self._is_off:
            return give()
        if self._tf.executing_eagerly():
            begun = time.perf_counter()
            value = give()
            self._waited += time.perf_counter() - begun
            return value
        tf = self._tf
        since: list[Any] = []
        with self._giving_up():
            if _counts_in_graph(tf, strategy):
                with tf.device(_HOST):
                    since.append(tf.timestamp())
        if not since:
            return give()
        with tf.control_dependencies(since):
            value = give()
        with self._giving_up():
            given = [part for part in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(part)]
            with tf.device(_HOST), tf.control_dependencies(given):
                tf.raw_ops.AssignAddVariableOp(resource=self._handle(0, []), value=tf.timestamp() - since[0])
        return value

    def count(self, strategy: Any, values: list[Any]) -> None:
        """Count the batches of one step: one batch for each replica of this process."""
        if not self._is_off:
            with self._giving_up():
                if self._tf.executing_eagerly():
                    self._count_now(values)
                elif _counts_in_graph(self._tf, strategy):
                    self._count_in_graph(values)

    def _count_now(self, values: list[Any]) -> None:
        self._steps += 1
        while len(self._replicas) < len(values):
            self._replicas.append([0, 0, 0])
        for sums, value in zip(self._replicas, values, strict=False):
            elements, size = _measure(self._tf, value)
            if elements:
                sums[0] += 1
                sums[1] += int(elements)
                sums[2] += int(size)

    def _count_in_graph(self, values: list[Any]) -> None:
        tf = self._tf
        measured = [_measure(tf, value) for value in values]  # on the device of the batch: only its shape leaves a GPU
        handle = self._handle(len(values), [0.0] * (1 + 3 * len(values)))
        with tf.device(_HOST):
            sums = [tf.constant(1.0, tf.float64)]
            for elements, size in measured:
                count = tf.cast(elements, tf.float64)
                sums += [tf.minimum(count, tf.ones([], tf.float64)), count, tf.cast(size, tf.float64)]
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.stack(sums))

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Stop counting at an error of orch's own code, with one line on stderr: the program must continue."""
        try:
            yield
        except Exception as error:
            self._is_off = True
            print_once(f"input: orch no longer counts what is read, because the counting failed: {type(error).__name__}: {error}")

    def _handle(self, key: int, zeros: list[float]) -> Any:
        if key not in self._handles:
            tf = self._tf
            with tf.init_scope(), tf.device(_HOST):
                value = tf.constant(zeros or 0.0, tf.float64)
                name = f"orch_input_{key}_{id(self)}"
                handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=value.shape, shared_name=name, container="")
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                self._handles[key] = handle
        return self._handles[key]

    # --- in the thread------------------------------------------------------------------------------

    def _poll_forever(self) -> None:
        while True:
            time.sleep(POLL_S)
            self._poll()

    def _poll(self) -> None:
        """Add a line to the reports if the task has read anything since the last call."""
        if self._is_off or os.getpid() != self._pid:  # in a child that the program has forked
            return
        # TensorFlow may be ending, the program may have left a graph open, the disk may be full.
        with self._lock, contextlib.suppress(Exception):
            waited, steps, replicas = self._sums()
            if not steps:
                return
            now = time.monotonic()
            before, self._last = self._last or (now, waited, 0), (now, waited, steps)
            if steps > before[2]:
                self._moving_s += now - before[0]
                self._moving_waited_s += min(waited - before[1], now - before[0])
                batches, elements, sizes = zip(*replicas, strict=True)
                found = {"steps": steps, "batches": batches, "elements": elements, "bytes": sizes}
                found |= {"seconds": round(self._moving_s, 3), "waiting_s": round(self._moving_waited_s, 3)}
                self._append({"at": time.time(), task_files.INPUT: found})

    def _sums(self) -> tuple[float, int, list[list[int]]]:
        waited, steps, replicas = self._waited, self._steps, [list(sums) for sums in self._replicas]
        for key, handle in list(self._handles.items()):
            found = self._tf.raw_ops.ReadVariableOp(resource=handle, dtype=self._tf.float64).numpy()
            if key == 0:
                waited += float(found)
                continue
            steps += int(found[0])
            replicas += [[0, 0, 0] for _ in range(key - len(replicas))]
            for index in range(key):
                replicas[index] = [was + int(more) for was, more in zip(replicas[index], found[1 + 3 * index :], strict=False)]
        return waited, steps, replicas

    def _append(self, line: dict[str, Any]) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def _counts_in_graph(tf: Any, strategy: Any) -> bool:
    """Whether the counter can add operations to the graph: its steps must run in this process, on devices that support all operations.

    The graph must be that of a `tf.function`: a session of TensorFlow 1 would have to initialise the counter's variables.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return False
    return not getattr(strategy, "_should_use_with_coordinator", False) and not type(strategy).__name__.startswith("TPU")


def _measure(tf: Any, value: Any) -> tuple[Any, Any]:
    """The elements and the bytes of a batch, without the bytes of texts. Numbers, or tensors in a graph."""
    elements, size = None, 0
    for part in tf.nest.flatten(value):
        if isinstance(part, tf.RaggedTensor):
            rows, part = part.nrows(), part.flat_values
        elif isinstance(part, tf.SparseTensor):
            rows, part = part.dense_shape[0], part.values
        elif not tf.is_tensor(part) or part.shape.rank == 0:
            continue
        elif part.shape[0] is None:
            rows = tf.shape(part, tf.int64)[0]
        else:
            rows = part.shape[0]
        if elements is None:
            elements = rows
        if part.dtype.is_floating or part.dtype.is_integer or part.dtype.is_bool or part.dtype.is_complex:
            count = part.shape.num_elements()
            size += (tf.size(part, tf.int64) if count is None else count) * part.dtype.size
    return (1 if elements is None else elements), size
