"""Measures where the time of the steps goes, for `orch scale`. Meanwhile the program saves nothing, and `fit` goes on until orch ends it.

A line of the task's reports has sums since the start of the program (`StepSums`), at most one a second. It is written at the end of a
graph, so that two lines are a whole number of steps apart. What is not in a graph, in a meeting or in the fetch of a batch is Python.
On a GPU, a graph counts as over when the GPU has computed it. A line also has the wait for peers at single steps, the same in all workers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from ...protocol import task_files
from ...protocol.step_sums import StepSums
from .. import patches
from ..patches.features import SCALE, SCALE_2
from ..shared import shared
from . import meetings, record_hooks, reports, step_times

EVERY_S, LATE_S, MARK_S = 1.0, 3.0, 0.02
"""The time between two lines, after which a line does not wait for the end of a graph, and between two steps of which a line tells."""
MOST_MARKS = 500
"""A line tells of so many of the newest steps: the agent hands on only the newest line, every four seconds."""
_ENDLESS = 1_000_000
"""The epochs of each `fit`."""
_FETCHES = ("DistributedIteratorBase.get_next", "DistributedIteratorBase.get_next_as_optional")
_MEETINGS = ("CollectiveReplicaLauncher.all_reduce", "CollectiveReplicaLauncher._all_gather")


def watch(log_dir: str) -> None:
    """Measure the steps of the program, as soon as it has imported TensorFlow."""
    shared("scale", list[bool]).append(True)
    threading.Thread(target=record_hooks.end_at_fault, args=({SCALE, SCALE_2},), name="orch scale", daemon=True).start()
    record_hooks.save_nothing(log_dir, lambda: True)
    made = Meter(os.path.join(log_dir, task_files.REPORTS))
    patches.after(SCALE, "tensorflow", lambda module: _hook_tensorflow(made, module))
    patches.after(SCALE, "keras", lambda module: _hook_fit(made, "keras"))
    patches.after(SCALE_2, "tf_keras", lambda module: _hook_fit(made, "tf_keras"))


class Meter:
    """The sums of one process. `path`: the file of the task's reports."""

    def __init__(self, path: str) -> None:
        self._path, self._next = path, 0.0
        self._is_inside, self._inside = False, 0.0
        """Whether the program's thread is in TensorFlow, and the seconds that it was."""
        self._exchanged = [0.0, 0.0]
        """The messages and bytes that Python has exchanged; graphs add to a variable of TensorFlow."""
        self._variable: Any = None
        self._context: Any = None
        self._left_out = [0.0] * 8
        self._since: list[float] = []
        """The sums when the training of an epoch was over; empty: it goes on."""
        self._marks: list[tuple[float, float]] = []
        """The newest steps of which a line tells, each with the seconds that were waited for peers."""
        self._mark_at, self._stride = 0.0, 1
        """When the next mark is due, and of which number its step is a multiple."""

    def within(self, function: Any, *, is_graph: bool) -> Any:
        """Call a function, whose time is none of Python. Nothing is counted in another thread of the program, and in a call within this."""
        if self._is_inside or threading.current_thread() is not threading.main_thread():
            return function()
        self._is_inside, begun = True, time.perf_counter()
        try:
            return function()
        finally:
            self._is_inside = False
            self._inside += time.perf_counter() - begun
            now = time.monotonic()
            if is_graph and now >= self._mark_at and not self._since:
                self._mark(now)
            if now >= self._next + (0 if is_graph else LATE_S) and not self._since:
                self._next = now + EVERY_S
                self._tell()

    def _mark(self, now: float) -> None:
        """Note the wait for peers at a step that the other workers note, too: a multiple of a power of two. Two are `MARK_S` apart."""
        step = (self._read_input(1).get(1, 0.0) or step_times.newest()) - self._left_out[1]
        if step % self._stride:
            return
        if self._marks and step - self._marks[-1][0] > self._stride and now < self._mark_at + MARK_S:  # one came too soon
            self._stride *= 2
        self._mark_at = now + MARK_S
        self._marks.append((step, round(meetings.read()[2] - self._left_out[3], 6)))

    def _tell(self) -> None:
        sums = [round(now - left, 6) for now, left in zip(self._read(), self._left_out, strict=True)]
        line = {"at": time.time(), task_files.SCALE: StepSums._make([*sums, round(self._left_out[0], 6), self._marks])}
        self._marks = self._marks[-MOST_MARKS:]
        reports.append(self._path, json.dumps(line).encode() + b"\n")

    def _read_input(self, only: int | None = None) -> dict[int, float]:
        counter = getattr(sys.modules.get("tensorflow.python.distribute.input_lib"), "_orch_counter", None)
        return counter.read(only) if counter is not None else {}

    def _read(self) -> list[float]:
        (_, _, waited, within, _), sums = meetings.read(), self._read_input()
        steps = sums.get(1, 0.0) or step_times.newest()
        elements = sum(value for number, value in sums.items() if number >= 3 and number % 3 == 0)
        return [time.monotonic(), steps, self._inside, waited, max(0.0, sums.get(0, 0.0) - within), elements, *self._read_exchanged()]

    def leave_out(self, begins: bool) -> None:
        """The validation of `fit`, or the end of an epoch, begins; or the next epoch trains."""
        if begins and not self._since:
            self._since = self._read()
        elif self._since and not begins:
            self._left_out = [left + now - then for left, now, then in zip(self._left_out, self._read(), self._since, strict=True)]
            self._since = []

    # --- what the workers exchange ------------------------------------------------------------------

    def exchange(self, value: Any) -> None:
        """The first replica of this task takes part in a collective: now, or in the graph that is traced."""
        import tensorflow as tf

        count = value.shape.num_elements()
        size = (tf.cast(tf.size(value), tf.float64) if count is None else float(count)) * value.dtype.size
        if tf.executing_eagerly():
            self._exchanged = [self._exchanged[0] + 1, self._exchanged[1] + float(size)]
            return
        with tf.init_scope(), tf.device("/device:CPU:0"):
            if self._context is not meetings.current_context():
                self._context = meetings.current_context()
                self._variable = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[2], shared_name="orch_exchanged", container="")
                tf.raw_ops.AssignVariableOp(resource=self._variable, value=tf.zeros([2], tf.float64))
        with tf.device("/device:CPU:0"):
            tf.raw_ops.AssignAddVariableOp(resource=self._variable, value=tf.stack([tf.constant(1.0, tf.float64), size]))

    def _read_exchanged(self) -> list[float]:
        if self._variable is None or self._context is not meetings.current_context():
            return self._exchanged
        import tensorflow as tf

        found = tf.raw_ops.ReadVariableOp(resource=self._variable, dtype=tf.float64).numpy()
        return [known + float(added) for known, added in zip(self._exchanged, found, strict=True)]


def _hook_tensorflow(made: Meter, module: Any) -> None:
    def call_function(real: Any, *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            found = real(*args, **kwargs)
            if module.config.list_logical_devices("GPU"):
                module.test.experimental.sync_devices()
            return found

        return made.within(call, is_graph=True)

    def fetch(real: Any, *args: Any, **kwargs: Any) -> Any:
        traces = not module.executing_eagerly()
        return real(*args, **kwargs) if traces else made.within(lambda: real(*args, **kwargs), is_graph=False)

    def meet(real: Any, self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if meetings.is_counted(self) and module.is_tensor(value):
            made.exchange(value)
        return fetch(real, self, value, *args, **kwargs)

    patches.replace(SCALE, "Context.call_function", call_function)
    for name in _FETCHES:
        patches.replace(SCALE, name, fetch)
    for name in _MEETINGS:
        patches.replace(SCALE, name, meet)


def _hook_fit(made: Meter, package: str) -> None:
    feature, name = (SCALE, "Trainer.fit") if package == "keras" else (SCALE_2, "tf_keras.Model.fit")

    class Epochs(sys.modules[f"{package}.src.callbacks"].Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            made.leave_out(False)

        def on_test_begin(self, logs: Any = None) -> None:
            made.leave_out(True)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            made.leave_out(True)

    patches.guard_hooks(feature, Epochs)

    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 3:
            args = (*args[:3], _ENDLESS, *args[4:])
        else:
            kwargs["epochs"] = _ENDLESS
        args, kwargs = record_hooks.with_callbacks(Epochs, args, kwargs, "orch scale", ("EarlyStopping",))
        return real(self, *args, **kwargs)

    patches.replace(feature, name, fit)
