"""Counts the meetings of the workers under MultiWorkerMirroredStrategy, and the seconds that this worker waits in them for its peers.

A meeting is one collective operation (an all-reduce or a gather): no worker leaves a meeting before all have come. All workers have the
same meetings in the same order, so the worker that came to fewer meetings than the others is the one for which the others wait.

Two methods of one class launch all collectives (`CollectiveReplicaLauncher` in tensorflow/python/distribute/cross_device_utils.py).
Around each, a graph gets a timestamp when the input is ready, another one when the result is there, and two additions to a variable. No
number of the program changes, and only the collective itself waits for two of these, some microseconds. The first replica of a task counts
for all of its replicas. On a GPU nothing is counted: the input of its collectives counts as ready while the GPU still computes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from .. import import_hooks
from . import shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MODULE = "tensorflow.python.distribute.cross_device_utils"
_HOST = "/device:CPU:0"
_MOST_LAUNCHERS = 8
"""So many launchers are read; a program that makes one strategy after the other leaves the older ones behind."""
_ENDS = "_orch_meetings"
"""An attribute of a graph: when the newest meeting of each launcher is over, a tensor."""
_SUMS = 4
"""The numbers of a `_Meeting`: how often the task came, how often all had come, the seconds that it waited, those within the input."""

_launchers: list[Any] = shared("launchers", list)
"""The launchers that have launched something, the newest last; each has a `_Meeting` as its attribute `_orch_meeting`."""
_left: list[float] = shared("left", lambda: [0.0] * _SUMS)
"""The sums of launchers that are not in `_launchers` any more."""
_devices: dict[int, str] = shared("devices", dict)
"""The device of the first replica, by the key of the group of replicas."""
_is_off = False


class _Here:
    in_input = False
    """The program gets the next batch from a distributed dataset. No thread has this for itself: TensorFlow has threads for eager meetings,
    and all workers have the same meetings in the same order, so no other thread has a meeting meanwhile.
    """


_here = shared("here", _Here)


class _Meeting:
    """The sums of one launcher."""

    def __init__(self) -> None:
        self.sums = [0.0] * _SUMS
        """What Python has added."""
        self.variable: Any = None
        """What graphs add to: a resource of TensorFlow; None: no graph has been made."""


_on_first: Any = None
"""To be called when the first launcher is counted."""


def watch(on_first: Callable[[], Any]) -> None:
    """Count the meetings from now on, once TensorFlow is imported. `on_first`: is called before the first meeting."""
    import_hooks.after(_MODULE, lambda module: _install(module, on_first), "the time of collectives")


def _install(module: Any, on_first: Callable[[], Any]) -> None:
    global _on_first
    _on_first = on_first
    for name in ("all_reduce", "_all_gather"):
        import_hooks.replace(module.CollectiveReplicaLauncher, name, _meet)


@contextlib.contextmanager
def within_input() -> Iterator[None]:
    """While this is entered, meetings are part of getting the next batch."""
    before, _here.in_input = _here.in_input, True
    try:
        yield
    finally:
        _here.in_input = before


def read() -> list[float]:
    """How often the task came to a meeting, how often all had come, the seconds that it waited, and those of them within the input."""
    total = list(_left)
    for launcher in list(_launchers):
        for place, value in enumerate(_read(launcher._orch_meeting)):
            total[place] += value
    return total


def _read(meeting: _Meeting) -> list[float]:
    if meeting.variable is None:
        return meeting.sums
    import tensorflow as tf

    added = tf.raw_ops.ReadVariableOp(resource=meeting.variable, dtype=tf.float64).numpy()
    return [float(value) + more for value, more in zip(added, meeting.sums, strict=True)]


# --- around a collective ---------------------------------------------------------------------------


def _meet(real: Any, self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    meeting = None if _is_off else _meeting_of(self)
    if meeting is None or not tf.is_tensor(value):
        return real(self, value, *args, **kwargs)
    in_input = _here.in_input
    if tf.executing_eagerly():
        meeting.sums[0] += 1
        begun = time.perf_counter()
        result = real(self, value, *args, **kwargs)
        _add(meeting.sums, time.perf_counter() - begun, in_input)
        return result
    since = None if is_deterministic() else _try_to_measure(lambda: _come(tf, self, meeting, value))
    if since is None:
        return real(self, value, *args, **kwargs)
    with tf.control_dependencies([since]):  # beside it, TensorFlow would hand the collective over to another thread, which takes longer
        result = real(self, value, *args, **kwargs)
    _try_to_measure(lambda: _leave(tf, self, meeting, result, since, in_input))
    return result


def is_deterministic() -> bool:
    """Whether TensorFlow must be deterministic: then it refuses timestamps in graphs."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def _add(sums: list[float], waited: float, in_input: bool) -> None:
    sums[1] += 1
    sums[2] += waited
    sums[3] += waited if in_input else 0.0


def _come(tf: Any, launcher: Any, meeting: _Meeting, value: Any) -> Any:
    """Have the graph count that the task has come. Returns the time at which the input is ready and the meeting before is over."""
    last = getattr(tf.compat.v1.get_default_graph(), _ENDS, {}).get(id(launcher))
    with tf.device(_HOST):
        one = tf.constant([1.0, 0.0, 0.0, 0.0], tf.float64)
        with tf.control_dependencies([value] if last is None else [value, last]):
            come = tf.raw_ops.AssignAddVariableOp(resource=_variable(tf, meeting), value=one)
        with tf.control_dependencies([come]):
            return tf.timestamp()


def _leave(tf: Any, launcher: Any, meeting: _Meeting, result: Any, since: Any, in_input: bool) -> None:
    """Have the graph count that all have come."""
    with tf.device(_HOST), tf.control_dependencies([result]):
        now = tf.timestamp()
        waited, nothing = now - since, tf.constant(0.0, tf.float64)
        added = tf.stack([nothing, tf.constant(1.0, tf.float64), waited, waited if in_input else nothing])
        tf.raw_ops.AssignAddVariableOp(resource=_variable(tf, meeting), value=added)
    graph = tf.compat.v1.get_default_graph()
    setattr(graph, _ENDS, {**getattr(graph, _ENDS, {}), id(launcher): now})


def _try_to_measure(measure: Any) -> Any:
    """An error of orch's own code stops the counting, with one line on stderr: the program must continue."""
    global _is_off
    try:
        return measure()
    except Exception as error:
        _is_off = True
        import_hooks.print_once(f"the waits of workers for each other are not measured any more: {type(error).__name__}: {error}")
        return None


def _variable(tf: Any, meeting: _Meeting) -> Any:
    if meeting.variable is None:
        with tf.init_scope(), tf.device(_HOST):
            made = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[_SUMS], shared_name=f"orch_meetings_{id(meeting)}", container="")
            tf.raw_ops.AssignVariableOp(resource=made, value=tf.zeros([_SUMS], tf.float64))
        meeting.variable = made
    return meeting.variable


def _meeting_of(launcher: Any) -> _Meeting | None:
    """Where the meetings of a launcher are counted; None: they are not counted."""
    found: _Meeting | None = vars(launcher).get("_orch_meeting")
    if found is not None or "_orch_meeting" in vars(launcher):
        return found
    if _is_counted(launcher):
        if not _launchers:
            _on_first()
        found = _Meeting()
        _launchers.append(launcher)
        launcher._orch_meeting = found
        if len(_launchers) > _MOST_LAUNCHERS:
            for place, value in enumerate(_read(_launchers.pop(0)._orch_meeting)):
                _left[place] += value
    else:
        launcher._orch_meeting = None
    return found


def _is_counted(launcher: Any) -> bool:
    """Whether this launcher is of the first replica of the task, among several replicas, and on a CPU."""
    import tensorflow as tf

    device = str(launcher._device)
    is_first = _devices.setdefault(launcher._group_key, device) == device
    has_variables = bool(tf.compat.v1.executing_eagerly_outside_functions())  # a session of TensorFlow 1 would have to initialise them
    return is_first and has_variables and launcher._group_size > 1 and "GPU" not in device and "TPU" not in device
