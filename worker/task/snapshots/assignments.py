"""Notices each assignment of a variable by Python, in a graph that is being made or at once, and the end of each `strategy.run`.

Assignments by raw operations and by `tf.train.Checkpoint.restore` go unnoticed.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..import_hooks import replace
from ..pace import shared

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min")
_SCATTERS = ("scatter_mul", "scatter_div", "batch_scatter_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update")


class AssignmentListener(Protocol):
    """Of the variables of a training."""

    def on_assignment(self, variable: Any) -> None: ...

    def end_of_replica(self) -> None:
        """`strategy.run` has called the function of the replicas, or has traced the call."""


_watchers: list[AssignmentListener] = shared("assignments", list)
_installed: list[bool] = shared("assignments_installed", list)


def watch(watcher: AssignmentListener) -> None:
    """Tell this one, and no longer the one before."""
    _watchers[:] = [watcher]
    if not _installed:
        _installed.append(True)
        _install()


def leave(watcher: AssignmentListener) -> None:
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
