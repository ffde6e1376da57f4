"""Which operations of a graph that is being made come after another one, once TensorFlow has added the order of the program.

Inside a `tf.function`, operations that use the same variable, or the same token of collectives, run as they stand in the program. But
TensorFlow adds the edges for this only when the trace ends (tensorflow/python/framework/auto_control_deps.py): a walk along the edges that
exist before does not see them. This module follows the same rules, for all operations from the first to the last.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

_OLD = ("Switch", "Merge")
"""Control flow of TensorFlow 1, which orders operations by other rules, and which no `tf.function` has by default."""


def late_writes(graph: Any, start: Any) -> set[int]:
    """The numbers of the resources in this graph whose last use that may write comes after `start`: no read at the end of the graph that is
    made so far can come before it. Raises RuntimeError for a graph that is not understood.
    """
    return _Order(graph, start).late()


class _Order:
    """What comes after `start`, in the order of the program."""

    def __init__(self, graph: Any, start: Any) -> None:
        self._operations = graph.get_operations()
        self._independent = set(getattr(graph.experimental_acd_manager, "_independent_ops", ()))
        self._after = {start}
        self._is_write_late: dict[Any, bool] = {}
        """Of each resource: whether its last write is late. Operations with other effects wait for one another, too: under None."""
        self._is_read_late: defaultdict[Any, bool] = defaultdict(bool)
        """Whether one of the reads since the last write is late."""

    def late(self) -> set[int]:
        for op in self._operations:
            if op.type in _OLD:
                raise RuntimeError(f"the step has control flow of TensorFlow 1 ({op.name})")
            if self._waits(op):
                self._after.add(op)
            if not (op in self._independent or op.type in _rules().MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS):
                self._use(op)
        return {key for key, is_late in self._is_write_late.items() if is_late and isinstance(key, int)}

    def _waits(self, op: Any) -> bool:
        """Whether an edge that exists already makes it late."""
        before = (*op.control_inputs, *(each.op for each in op.inputs))
        return op in self._after or any(each in self._after for each in before)

    def _use(self, op: Any) -> None:
        """What the operation uses makes it late, and then it makes late what uses that next."""
        rules = _rules()
        uses = {each._id: kind != rules.ResourceType.READ_ONLY for each, kind in rules._get_resource_inputs(op)}
        chains: list[Any] = [("collectives", scope) for scope in _scopes(op)]
        if not uses and rules.op_is_stateful(op):
            chains.append(None)
        writes = [*chains, *(key for key, is_write in uses.items() if is_write)]
        if any(self._is_write_late.get(key) for key in (*chains, *uses)) or any(self._is_read_late[key] for key in writes):
            self._after.add(op)
        is_late = op in self._after
        for key in writes:
            self._is_write_late[key], self._is_read_late[key] = is_late, False
        for key, is_write in uses.items():
            if not is_write:
                self._is_read_late[key] |= is_late


def _rules() -> Any:
    from tensorflow.python.framework import auto_control_deps

    return auto_control_deps


def _scopes(op: Any) -> list[Any]:
    """The groups of collectives that TensorFlow runs one after the other."""
    if op.type == "NoOp":
        try:
            return [op.get_attr("_collective_manager_id")]
        except ValueError:
            return []
    return list(_rules().collective_manager_ids_from_op(op))
