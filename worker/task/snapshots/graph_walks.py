"""What the graph of a step shows: which of its operations write a variable, and what comes before or after an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import program_order


def after(op: Any) -> set[Any]:
    """An operation, and all that come after it by an edge."""
    return _reach(op, _followers)


def before(op: Any) -> set[Any]:
    """An operation, and all that come before it by an edge."""
    return _reach(op, _sources)


def names_of_handles(graph: Any, names: dict[int, str]) -> dict[int, str]:
    """The names of variables by the numbers of their handles inside a graph. `names`: by the identity of their handles outside of any."""
    found: dict[int, str] = {}
    outer = graph.outer_graph
    of_outer = names_of_handles(outer, names) if hasattr(outer, "captures") else {}
    for outside, inside in graph.captures:
        name = names.get(id(outside)) or of_outer.get(getattr(outside, "_id", -1))
        if name:
            found[inside._id] = name
    return found


def writers(graph: Any, names: dict[int, str]) -> Iterator[tuple[Any, str]]:
    """The operations of a graph that may write a variable, with its name. `names`: as above."""
    handles = names_of_handles(graph, names)
    for op in graph.get_operations():
        if any(each._id in handles for each in op.inputs):
            for each in written(op):
                if each._id in handles:
                    yield op, handles[each._id]


def written(op: Any) -> Iterable[Any]:
    """The handles of the variables that an operation may write."""
    from tensorflow.python.framework import auto_control_deps_utils

    found: Iterable[Any] = auto_control_deps_utils.get_read_write_resource_inputs(op)[1]
    return found


def late(graph: Any, start: Any, names: dict[int, str]) -> str:
    """The first of these variables whose last change comes after `start`, in the order of the program; empty: there is none."""
    found = program_order.late_writes(graph, start)
    return next((name for number, name in names_of_handles(graph, names).items() if number in found), "")


def _followers(op: Any) -> Iterable[Any]:
    yield from op._control_outputs
    for output in op.outputs:
        yield from output.consumers()


def _sources(op: Any) -> Iterable[Any]:
    yield from op.control_inputs
    for each in op.inputs:
        yield each.op


def _reach(op: Any, neighbours: Callable[[Any], Iterable[Any]]) -> set[Any]:
    found, left = {op}, [op]
    while left:
        new = [each for each in neighbours(left.pop()) if each not in found]
        found.update(new)
        left += new
    return found
