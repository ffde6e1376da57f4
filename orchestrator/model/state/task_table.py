"""The tasks of a cluster by name, as a value that is changed one task at a time without a copy of all the others."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import Cluster, TaskStatus

PART = 64
"""How many tasks are copied at a change. With 8,000 tasks, this many and the number of the parts are about the same."""


class TaskTable(Mapping[str, "TaskStatus"]):
    """The tasks in their order, in parts that two tables can share. With a dict for each step, n tasks would cost n times n copies."""

    __slots__ = ("_parts", "_places")

    def __init__(self, tasks: Mapping[str, TaskStatus]) -> None:
        each = tuple(tasks.values())
        self._places = {name: divmod(number, PART) for number, name in enumerate(tasks)}
        self._parts = tuple(each[start : start + PART] for start in range(0, len(each), PART))

    def changed(self, name: str, change: Callable[[TaskStatus], TaskStatus]) -> TaskTable:
        at, place = self._places[name]
        part = self._parts[at]
        table = object.__new__(TaskTable)
        table._places = self._places
        table._parts = (*self._parts[:at], (*part[:place], change(part[place]), *part[place + 1 :]), *self._parts[at + 1 :])
        return table

    def __getitem__(self, name: str) -> TaskStatus:
        at, place = self._places[name]
        return self._parts[at][place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def items(self) -> ItemsView[str, TaskStatus]:
        return _Items(self)

    def values(self) -> ValuesView[TaskStatus]:
        return _Values(self)

    def in_order(self) -> Iterator[TaskStatus]:
        """The tasks from the first to the last."""
        return chain.from_iterable(self._parts)

    def last_first(self) -> Iterator[TaskStatus]:
        """The tasks from the last to the first, of which a caller that stops early has looked at few."""
        return chain.from_iterable(map(reversed, reversed(self._parts)))


class _Items(ItemsView[str, "TaskStatus"]):
    _mapping: TaskTable

    def __iter__(self) -> Iterator[tuple[str, TaskStatus]]:
        return zip(self._mapping, self._mapping.in_order(), strict=True)


class _Values(ValuesView["TaskStatus"]):
    _mapping: TaskTable

    def __iter__(self) -> Iterator[TaskStatus]:
        return self._mapping.in_order()


def table(tasks: Mapping[str, TaskStatus]) -> TaskTable:
    """The tasks as a table, which they may be already."""
    return tasks if isinstance(tasks, TaskTable) else TaskTable(tasks)


def update(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    return replace(cluster, tasks=table(cluster.tasks).changed(name, lambda task: replace(task, **changes)))
