"""Measures the meetings of the workers under MultiWorkerMirroredStrategy: the seconds that this worker waits in them for its peers.

A meeting is one collective operation (an all-reduce or a gather): no worker leaves a meeting before all have come. All workers have the
same meetings in the same order, so a worker that is in none while the others stay in one is the one for which the others wait.

Two methods of one class launch all collectives (`CollectiveReplicaLauncher` in tensorflow/python/distribute/cross_device_utils.py), but
for those that give a new variable the chief's values (`_share`).
Around each, a graph subtracts the time from a variable when the input is ready, and adds the time when the result is there. So the variable
is the seconds of waiting, less the time of the meeting that goes on: it also tells whether one does. These are four operations, and one
that hands the result on; anyone who reads the variable computes the rest. No number of the program changes. The first replica of a task
counts for all of its replicas. On a GPU nothing is measured: the input of its collectives counts as ready while the GPU still computes it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from .. import patches
from ..patches import guard
from ..patches.features import MEETINGS
from ..shared import shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MODULE = "tensorflow.python.distribute.cross_device_utils"
_HOST = "/device:CPU:0"
_MOST_LAUNCHERS = 8
"""So many launchers are read; a program that makes one strategy after the other leaves the older ones behind."""
_ENDS = "_orch_meetings"
"""An attribute of a graph: for each launcher, the operation after which its newest meeting is over."""
_SUMS = 5
"""The numbers of a `_Meeting`, see `read`."""
_WAITED, _WITHIN = "waited", "within"
"""The variables of a `_Meeting`: the seconds that the task waited outside the input, and within, each less the time since 1970 at which a
meeting that goes on has begun."""

_launchers: list[Any] = shared("launchers", list)
"""The launchers that have launched something, the newest last; each has a `_Meeting` as its attribute `_orch_meeting`."""
_left: list[float] = shared("left", lambda: [0.0] * _SUMS)
"""The sums of launchers that are not in `_launchers` any more."""
new_variables: list[int] = shared("new variables", lambda: [0, 0])
"""How many variables wait for their first value now, and how many have done so. These meetings are part of no step."""
_devices: dict[int, str] = shared("devices", dict)
"""The device of the first replica, by the key of the group of replicas."""


class _Here:
    in_input = 0
    """In how many calls the program gets the next batch from a distributed dataset. No thread has this for itself: TensorFlow has threads
    for eager meetings, and all workers have the same meetings in the same order, so no other thread has a meeting meanwhile."""


_here = shared("here", _Here)


class _Meeting:
    def __init__(self) -> None:
        self.sums = [1.0, 1.0, *[0.0] * (_SUMS - 2)]
        """What Python has added. The launcher itself counts as one meeting that all came to."""
        self.variables: dict[str, Any] = {}
        """What graphs add to: resources of TensorFlow."""
        self.context = current_context()


_on_first: Any = None
"""To be called when the first launcher is counted."""


def watch(on_first: Callable[[], Any]) -> None:
    """Count the meetings from now on, once TensorFlow is imported. `on_first`: is called before the first meeting."""
    patches.after(MEETINGS, _MODULE, lambda module: _install(on_first))


def _install(on_first: Callable[[], Any]) -> None:

    global _on_first
    _on_first = on_first
    for name in ("all_reduce", "_all_gather"):
        patches.replace(MEETINGS, f"CollectiveReplicaLauncher.{name}", _meet)
    for name in ("broadcast_send", "broadcast_recv"):
        patches.replace(MEETINGS, f"collective_ops.{name}", _share)


def current_context() -> Any:
    """Return the holder of TensorFlow's resources, which a program may replace. This makes none: its devices would be fixed."""
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context_safe()


@contextlib.contextmanager
def within_input() -> Iterator[None]:
    """While this is entered, meetings are part of getting the next batch."""
    _here.in_input += 1
    try:
        yield
    finally:
        _here.in_input -= 1


def read() -> list[float]:
    """Return how often the task came to a meeting, how often all had come, the seconds that it waited, those of them within the input, and
    a number that every meeting changes. Of the meetings of graphs, the first number counts only the one that goes on."""
    total = list(_left)
    for launcher in [] if MEETINGS in guard.off else list(_launchers):
        for place, value in enumerate(_read(launcher._orch_meeting)):
            total[place] += value
    return total


def _read(meeting: _Meeting) -> list[float]:
    came, met, waited, within, changing = meeting.sums
    for name, variable in list(meeting.variables.items()) if meeting.context is current_context() else []:
        import tensorflow as tf

        with tf.init_scope():  # also while a program traces a graph
            value = float(tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float64).numpy())
        changing += value
        now = time.time()
        going_on = max(0, round(-value / now))
        came += going_on
        value += going_on * now
        waited, within = waited + value, within + (value if name == _WITHIN else 0.0)
    return [came, met, waited, within, changing]


# --- around a collective ---------------------------------------------------------------------------


def _meet(real: Any, self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    meeting = _meeting_of(self)
    if meeting is None or not tf.is_tensor(value):
        return real(self, value, *args, **kwargs)
    in_input = _here.in_input > 0
    if tf.executing_eagerly():
        meeting.sums[0] += 1
        begun = time.perf_counter()
        result = real(self, value, *args, **kwargs)
        _add(meeting.sums, time.perf_counter() - begun, in_input)
        return result
    name = _WITHIN if in_input else _WAITED
    if is_deterministic():
        return real(self, value, *args, **kwargs)
    come = _come(tf, self, meeting, value, name)
    with tf.control_dependencies([come]):  # without this, TensorFlow would hand the collective over to another thread, which takes longer
        result = real(self, value, *args, **kwargs)
    return _leave(tf, self, meeting, result, name)


def _share(real: Any, *args: Any, **kwargs: Any) -> Any:
    """Note the meeting in which the workers get the first value of a variable from the chief; in a graph it is not noted."""
    import tensorflow as tf

    context = current_context()
    if not tf.executing_eagerly() or context is None or "CPU" not in str(context.device_name):
        return real(*args, **kwargs)
    _on_first()
    new_variables[:] = [1, new_variables[1] + 1]
    try:
        return real(*args, **kwargs)
    finally:
        new_variables[0] = 0


def is_deterministic() -> bool:
    """True if TensorFlow must be deterministic: then it refuses timestamps in graphs."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def _add(sums: list[float], waited: float, in_input: bool) -> None:
    sums[1] += 1
    sums[2] += waited
    sums[3] += waited if in_input else 0.0


def _come(tf: Any, launcher: Any, meeting: _Meeting, value: Any, name: str) -> Any:
    """Have the graph subtract the time, once the input is ready and the meeting before is over. Returns the last operation."""
    last = getattr(tf.compat.v1.get_default_graph(), _ENDS, {}).get(id(launcher))
    with tf.device(_HOST):
        with tf.control_dependencies([value] if last is None else [value, last]):
            now = tf.timestamp()
        return tf.raw_ops.AssignSubVariableOp(resource=_variable(tf, meeting, name), value=now)


def _leave(tf: Any, launcher: Any, meeting: _Meeting, result: Any, name: str) -> Any:
    """Have the graph add the time when the meeting is over. Returns the result for the program.

    Of what waits for a collective, TensorFlow hands each operation to a thread. So the timestamp alone waits for it, and the operations of
    the program come after the timestamp, in the same thread.
    """
    with tf.device(_HOST), tf.control_dependencies([result]):
        now = tf.timestamp()
        over = tf.raw_ops.AssignAddVariableOp(resource=_variable(tf, meeting, name), value=now)
    graph = tf.compat.v1.get_default_graph()
    setattr(graph, _ENDS, {**getattr(graph, _ENDS, {}), id(launcher): over})
    with tf.device(launcher._device), tf.control_dependencies([over]):
        return tf.identity(result)


def _variable(tf: Any, meeting: _Meeting, name: str) -> Any:
    if meeting.context is not current_context():
        meeting.variables.clear()
        meeting.context = current_context()
    if name not in meeting.variables:
        with tf.init_scope(), tf.device(_HOST):
            made = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[], shared_name=f"orch_meetings_{id(meeting)}_{name}", container="")
            tf.raw_ops.AssignVariableOp(resource=made, value=tf.zeros([], tf.float64))
        meeting.variables[name] = made
    return meeting.variables[name]


def _meeting_of(launcher: Any) -> _Meeting | None:
    """Return where the meetings of a launcher are counted; None: they are not counted."""
    found: _Meeting | None = vars(launcher).get("_orch_meeting")
    if found is not None or "_orch_meeting" in vars(launcher):
        return found
    if is_counted(launcher):
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


def is_counted(launcher: Any) -> bool:
    """True if this launcher is of the first replica of the task, among several replicas, and on a CPU."""
    import tensorflow as tf

    device = str(launcher._device)
    is_first = _devices.setdefault(launcher._group_key, device) == device
    has_variables = bool(tf.compat.v1.executing_eagerly_outside_functions())  # a session of TensorFlow 1 would have to initialise them
    return is_first and has_variables and launcher._group_size > 1 and "GPU" not in device and "TPU" not in device
