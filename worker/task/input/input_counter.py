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
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ...protocol import task_files
from .. import patches
from ..observe import meetings, step_times
from ..patches import guard
from ..patches.features import COUNTS
from ..patches.import_hooks import print_once
from . import shuffle_order

POLL_S = 1.0
"""The time between two readings of the sums, in seconds."""
_HOST = "/device:CPU:0"
_STATE = "_orch_counter"
"""The attribute of TensorFlow's module that holds the counter. A task may import the module you are reading twice, under two names."""


@patches.guarded(COUNTS)
def begin() -> None:
    """Start to count. Outside orch, and in a TensorFlow with other names, this does nothing."""
    directory = os.environ.get("ORCH_LOG_DIR")
    if not directory:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.distribute import input_lib

        if not hasattr(input_lib, _STATE) and patches.is_on(COUNTS):
            _install(input_lib, Counter(os.path.join(directory, task_files.REPORTS)))


@patches.guarded(COUNTS)
def check_end(data: Any, steps_per_epoch: Any) -> None:
    """Print a line if the first epoch of `fit` has no end."""
    import tensorflow as tf

    is_dataset = tf.executing_eagerly() and isinstance(data, tf.data.Dataset)
    if is_dataset and steps_per_epoch is None and shuffle_order.is_endless(data):
        print_once("input: fit() has a dataset that repeats without end, and no steps_per_epoch: the first epoch has no end")


def _install(module: Any, counter: Counter) -> None:
    def get_next(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return counter.time(self._strategy, lambda: real(self, *args, **kwargs))

    def create_per_replica(real: Any, value_list: Any, strategy: Any) -> Any:
        counter.count(strategy, value_list)
        return real(value_list, strategy)

    patches.replace(COUNTS, "DistributedIteratorBase.get_next", get_next)
    patches.replace(COUNTS, "DistributedIteratorBase.get_next_as_optional", get_next)
    patches.replace(COUNTS, "input_lib._create_per_replica", create_per_replica)
    setattr(module, _STATE, counter)
    step_times.take_input(lambda number: counter.read(number)[number], counter.fetches_since)


class Counter:
    """The sums of one process. `path`: the file of the task's reports.

    Each sum has a number: 0 the seconds of waiting, 1 the steps, then for each replica its batches that are not empty, their elements, and
    their bytes. What Python adds and what graphs add are kept apart, because a graph can add only to a variable of TensorFlow.
    """

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        from ..observe import reports

        self._tf, self._append = tf, reports.append
        self._path, self._pid = path, os.getpid()
        self._lock = threading.Lock()
        self._sums: defaultdict[int, float] = defaultdict(float)
        self._variables: dict[tuple[int, int], Any] = {}
        """TensorFlow's variables. Key: the number of the first sum, and of how many sums."""
        self._context = meetings.current_context()
        self._since = 0.0
        """When the fetch began that goes on in Python, in seconds since 1970; 0: none does."""
        self._since_of_graphs: Any = None
        """The same of graphs, a variable of TensorFlow. A fetch that fails, such as the one behind the last batch, leaves it as it is."""
        self._last: tuple[float, float, int] | None = None
        """At the last reading: the time, the seconds waited, the steps."""
        self._moving_s, self._moving_waited_s = 0.0, 0.0
        """All time between readings with new steps, and the waiting time in it, in seconds."""
        self._is_polled = False

    # --- while the program iterates ----------------------------------------------------------------

    def time(self, strategy: Any, give: Callable[[], Any]) -> Any:
        """Call `give` and count its time. Returns the result of `give`, or raises its exception."""
        tf = self._tf
        if not self._counts(strategy):
            return give()
        if tf.executing_eagerly():
            begun, self._since = time.perf_counter(), time.time()
            try:
                with meetings.within_input():
                    value = give()
            finally:
                self._since = 0.0
            self._add(0, lambda: [time.perf_counter() - begun])
            return value
        if meetings.is_deterministic():
            return give()
        with tf.device(_HOST):
            since = tf.timestamp()
            begun = self._tell_since(since)
        with tf.control_dependencies([begun]), meetings.within_input():
            value = give()
        given = [part for part in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(part)]
        with tf.device(_HOST), tf.control_dependencies(given):
            self._add(0, lambda: [tf.timestamp() - since])
            self._tell_since(tf.zeros([], tf.float64))
        return value

    def _tell_since(self, value: Any) -> Any:
        """Have the graph tell that a fetch has begun, or that it is over. Returns the operation."""
        tf = self._tf
        self._forget_other_context()
        if self._since_of_graphs is None:
            with tf.init_scope():
                self._since_of_graphs = self._make_variable(f"orch_input_since_{id(self)}", [])
        return tf.raw_ops.AssignVariableOp(resource=self._since_of_graphs, value=value)

    def fetches_since(self) -> float:
        """When the fetch of a batch began that goes on, in seconds since 1970; 0: none does, as far as orch knows."""
        if self._since or self._since_of_graphs is None or self._context is not meetings.current_context() or not _runs_a_graph():
            return self._since
        return float(self._tf.raw_ops.ReadVariableOp(resource=self._since_of_graphs, dtype=self._tf.float64).numpy())

    def count(self, strategy: Any, values: list[Any]) -> None:
        """Count the batches of one step: one batch for each replica of this process."""
        if self._counts(strategy):
            self._add(1, lambda: [1, *(number for value in values for number in _measure(self._tf, value))])

    def _counts(self, strategy: Any) -> bool:
        """True if these steps are counted. In a graph, they must run in this process, on devices that support all operations.

        The graph must be that of a `tf.function`: a session of TensorFlow 1 would have to initialise the counter's variable.
        """
        if not self._is_polled:
            self._is_polled, self._pid = True, os.getpid()
            threading.Thread(target=patches.guarded(COUNTS)(self._poll_forever), name="orch-input", daemon=True).start()
            atexit.register(patches.guarded(COUNTS)(self._poll))
        if self._tf.executing_eagerly():
            return True
        is_elsewhere = getattr(strategy, "_should_use_with_coordinator", False) or type(strategy).__name__.startswith("TPU")
        return bool(self._tf.compat.v1.executing_eagerly_outside_functions()) and not is_elsewhere

    def _add(self, first: int, measure: Callable[[], list[Any]]) -> None:
        """Add numbers to the sums from this one on: now, or by an operation of the graph."""
        tf = self._tf
        numbers = measure()  # on the device of the batch: only its shape leaves a GPU
        if tf.executing_eagerly():
            for index, number in enumerate(numbers, first):
                self._sums[index] += float(number)
            return
        with tf.device(_HOST):
            added = tf.stack([tf.cast(number, tf.float64) for number in numbers])
            tf.raw_ops.AssignAddVariableOp(resource=self._variable(first, len(numbers)), value=added)

    def _variable(self, first: int, count: int) -> Any:
        self._forget_other_context()
        if (first, count) not in self._variables:
            with self._tf.init_scope():
                self._variables[first, count] = self._make_variable(f"orch_input_{first}_{count}_{id(self)}", [count])
        return self._variables[first, count]

    def _forget_other_context(self) -> None:
        if self._context is not meetings.current_context():
            self._variables.clear()
            self._since_of_graphs = None
            self._context = meetings.current_context()

    def _make_variable(self, name: str, shape: list[int]) -> Any:
        tf = self._tf
        with tf.device(_HOST):
            made = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=shape, shared_name=name, container="")
            tf.raw_ops.AssignVariableOp(resource=made, value=tf.zeros(shape, tf.float64))
        return made

    # --- in the thread------------------------------------------------------------------------------

    def _poll_forever(self) -> None:
        while True:
            time.sleep(POLL_S)
            self._poll()

    def _poll(self) -> None:
        """Add a line to the reports if the task has read anything since the last call."""
        if COUNTS in guard.off or os.getpid() != self._pid:  # in a child that the program has forked
            return
        # TensorFlow may be ending, the program may have left a graph open, the disk may be full.
        with self._lock, contextlib.suppress(Exception):
            sums = self.read()
            # The workers tell each other whether they have data: this wait is one for the slowest worker, and not one for input.
            waited, steps = max(0.0, sums[0] - meetings.read()[3]), int(sums[1])
            if not steps:
                return
            now = time.monotonic()
            before = self._last or (now, waited, 0)
            waited = max(waited, before[1])  # of a fetch that goes on, only the wait for the slowest worker was read
            self._last = (now, waited, steps)
            if steps > before[2]:
                self._moving_s += now - before[0]
                self._moving_waited_s += min(waited - before[1], now - before[0])
                numbers = [int(sums[number]) for number in range(2, len(sums))]
                found = {"steps": steps, "batches": numbers[::3], "elements": numbers[1::3], "bytes": numbers[2::3]}
                found |= {"seconds": round(self._moving_s, 3), "waiting_s": round(self._moving_waited_s, 3)}
                self._append(self._path, json.dumps({"at": time.time(), task_files.INPUT: found}).encode() + b"\n")

    def read(self, only: int | None = None) -> defaultdict[int, float]:
        """The sums until now; only those that begin with this number, if one is given."""
        sums = self._sums.copy()
        for (first, _), variable in list(self._variables.items()) if self._context is meetings.current_context() else []:
            if only not in (None, first):
                continue
            added = self._tf.raw_ops.ReadVariableOp(resource=variable, dtype=self._tf.float64).numpy()
            for index, number in enumerate(added, first):
                sums[index] += float(number)
        return sums


def _runs_a_graph() -> bool:
    """True if a thread of the program is in a call of TensorFlow's runtime, and not in the program between two of them."""
    here = f"tensorflow{os.sep}python{os.sep}eager{os.sep}"
    own = threading.get_ident()
    return any(here in frame.f_code.co_filename for thread, frame in sys._current_frames().items() if thread != own)


def _measure(tf: Any, value: Any) -> tuple[Any, Any, Any]:
    """Return whether a batch has elements, how many, and their bytes without those of texts. Numbers, or tensors in a graph."""
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
    elements = 1 if elements is None else elements
    return elements > 0, elements, size
