"""Variables that the steps of a training change and that no save has: a restart begins these anew, so a line names them.

Such are a metric or a moving average that the program did not give to `worker.checkpoints`, and a variable in a list of a model of
Keras 3, which counts only what its `add_weight` has made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...values.words import few
from .. import failure
from ..checkpoints.variables import NamedVariable
from ..import_hooks import print_once
from . import assignments

DERIVED = frozenset({"current_learning_rate"})
"""Variables that a step sets anew before it reads them: that of a schedule in an optimizer of Keras 2."""


class Unsaved:
    """Of one training. `named`: finds the variables of its saves."""

    def __init__(self, named: Callable[[], list[NamedVariable]]) -> None:
        self._named = named
        self._assigned: weakref.WeakKeyDictionary[Any, dict[int, tuple[weakref.ref[Any], str]]] = weakref.WeakKeyDictionary()
        """By the outermost graph in which they are assigned: variables by the identity of their handles, with the line of the program."""
        self._has_new = False
        assignments.watch(self)

    def on_assignment(self, variable: Any) -> None:
        """A variable is assigned: in a graph that is being made, or at once."""
        import tensorflow as tf

        if tf.executing_eagerly():
            return
        graph = tf.compat.v1.get_default_graph()
        while (outer := getattr(graph, "outer_graph", None)) is not None and hasattr(outer, "captures"):
            graph = outer
        found = self._assigned.setdefault(graph, {})
        handle = getattr(variable, "_handle", None)
        if id(handle) not in found:
            found[id(handle)] = weakref.ref(variable), failure.calling_line()
            self._has_new = True

    def end_of_replica(self) -> None:
        """`strategy.run` has called the function of the replicas."""

    def tell(self) -> None:
        """A step is over: name what it changes beside the variables of the saves. Graphs that change none of these are no steps."""
        if not self._has_new:
            return
        self._has_new = False
        parts = [(each.is_own, id(getattr(part, "_handle", None))) for each in self._named() for part in each.replicas()]
        saved, alike = {handle for _, handle in parts}, {handle for is_own, handle in parts if not is_own}
        for assigned in map(dict, list(self._assigned.values())):  # copies: another thread may trace a graph
            if alike.isdisjoint(assigned):
                continue
            missing: dict[str, str] = {}
            for handle, (variable, line) in assigned.items():
                if handle in saved or (there := variable()) is None:
                    continue
                name = there.name.partition(":")[0]
                if name.rpartition("/")[2] not in DERIVED:
                    missing.setdefault(name, line)
            if missing:
                them = "it" if len(missing) == 1 else "them"
                print_once(
                    f"checkpoints: each step changes {few(list(missing))} ({next(iter(missing.values()))}), which no save has: a restart "
                    f"begins {them} anew, so the numbers may be other ones than without it; give {them} to worker.checkpoints or, in a "
                    f"model, make {them} by add_weight"
                )

    def end(self) -> None:
        """The training is over."""
        assignments.leave(self)
