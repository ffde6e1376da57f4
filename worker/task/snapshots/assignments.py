"""Notices each assignment of a variable by Python, in a graph that is being made or at once, and the end of each `strategy.run`: what
changes a variable outside of the optimizer's update.

Assignments by raw operations and by `tf.train.Checkpoint.restore` go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..import_hooks import replace
from ..pace import shared

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min")
_SCATTERS = ("scatter_mul", "scatter_div", "batch_scatter_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update")


NO_OPTIMIZER = "its steps have no optimizer of Keras 3 in the code of a replica"
Gate = Any
"""A `step_gate.StepGate`, whose module imports this one."""


class Assigned:
    """What Python assigns to the variables of one training. `alike`, `own`: the names of those that all workers have alike, and of those
    that each worker has for itself, by the identity of their handles.
    """

    def __init__(self, gate: Gate, alike: dict[int, str], own: dict[int, str]) -> None:
        self._gate, self._alike, self._own = gate, alike, own
        self.is_armed = False
        """The training has begun: from now on, also an assignment outside of any graph changes a variable behind the optimizer's back."""
        self.brackets = 0
        """Above 0: the optimizer makes its update."""
        self.has_new_numbers = True
        """Whether a common variable that the optimizer does not change was assigned, since this was last set to false."""
        self.has_new_own = False
        """Whether a variable of the worker itself has changed since the step of the graph after the last step that is over."""
        self.recorded: Callable[[], Any] = lambda: None
        """The graph that got a record last."""
        self.late_own = ""
        """A variable of the worker itself that this graph changes after its record."""

    def on_assignment(self, variable: Any) -> None:
        """A variable is assigned: in a graph that is being made, or at once."""
        import tensorflow as tf

        gate, handle = self._gate, id(getattr(variable, "_handle", None))
        if gate.why:
            return
        if own := self._own.get(handle):
            self._on_own(tf, own)
            return
        name = self._alike.get(handle)
        if name is None or self.brackets:
            return
        if tf.executing_eagerly() and not (self.is_armed and name in gate.changed):
            self.has_new_numbers = True
        else:
            gate.refuse(outside([name]) if gate.has_traced else NO_OPTIMIZER)

    def _on_own(self, tf: Any, name: str) -> None:
        """What changes after the record is not in it: in the same graph, or at once, before the program says that the step is over."""
        if not tf.executing_eagerly():
            graph, recorded = tf.compat.v1.get_default_graph(), self.recorded()
            while graph is not None and graph is not recorded:
                graph = getattr(graph, "outer_graph", None)
            if graph is not None:
                self.late_own = name
        elif self._gate.has_traced and self._gate.read()[0] != self._gate.finished:
            self.has_new_own = True

    def end_of_replica(self) -> None:
        """`strategy.run` has called the function of the replicas, or has traced the call."""
        self._gate.end_of_replica()


def outside(names: list[str]) -> str:
    """These variables change where none may, in words."""
    names = list(dict.fromkeys(names))
    more = f" (and {len(names) - 1} other variables)" if len(names) > 1 else ""
    return f"{names[0]}{more} {'change' if more else 'changes'} also outside of the optimizer's update"


Watcher = Any
"""An `Assigned`, or another object with its `on_assignment` and `end_of_replica`."""
_watchers: list[Watcher] = shared("assignments", list)
_installed: list[bool] = shared("assignments_installed", list)


def watch(watcher: Watcher) -> None:
    """Tell this one, and no longer the one of its kind before."""
    _watchers[:] = [*(each for each in _watchers if type(each) is not type(watcher)), watcher]
    if not _installed:
        _installed.append(True)
        _install()


def leave(watcher: Watcher) -> None:
    if watcher in _watchers:
        _watchers.remove(watcher)


def _install() -> None:
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable, UninitializedVariable

    def assign(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for watcher in _watchers:
            watcher.on_assignment(self)
        return real(self, *args, **kwargs)

    def run(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(self, *args, **kwargs)
        for watcher in _watchers:
            watcher.end_of_replica()
        return result

    for kind in (BaseResourceVariable, ResourceVariable, UninitializedVariable):
        for name in (*_ASSIGNMENTS, *_SCATTERS):
            if name in vars(kind):  # TensorFlow copies methods into classes that it registers
                replace(kind, name, assign)
    replace(distribute_lib.StrategyBase, "run", run)
