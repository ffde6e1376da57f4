"""The tasks of a cluster, and the host of each: from the numbers of tasks and the slots, before orch connects to a host. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from worker.protocol.task_id import DATA_SERVICE, PREPARE, TENSORBOARD, TaskId
from worker.values.words import count_of, few

from ..errors import Problem, SpecError
from .strategies import Strategy

Assignment = Mapping[str, tuple[TaskId, ...]]


def task_ids(counts: Mapping[str, int]) -> Iterator[TaskId]:
    """Every task, in the order of `counts`, which is TensorFlow's order of types."""
    for kind, count in counts.items():
        for index in range(count):
            yield TaskId(kind, index)


def behind_the_chief(counts: Mapping[str, int], strategy: Strategy) -> tuple[str, ...]:
    """The tasks that train in step with the chief, the first such task: their progress is the same as the chief's."""
    return tuple(str(task) for task in task_ids(counts) if strategy.role(task.type).synchronous)[1:]


def assign(counts: Mapping[str, int], slots: Mapping[str, int | None]) -> dict[str, tuple[TaskId, ...]]:
    """The tasks of each host, in order. `slots`: how many tasks each host takes. A host may get no task.

    If some hosts have slots, a host without slots takes one task. If none has, the tasks are cut into blocks whose sizes differ by one at
    most, and the servers of a tf.data service fill the smaller blocks. Raises `SpecError` if there are more tasks than slots.
    """
    ids = list(task_ids(counts))
    training = [task for task in ids if task.type not in DATA_SERVICE]
    if all(number is None for number in slots.values()):
        sizes, own = _shares(len(ids), len(slots)), _shares(len(training), len(slots))
        others = _cut(ids[len(training) :], [size - mine for size, mine in zip(sizes, own, strict=True)])
        blocks = [mine + other for mine, other in zip(_cut(training, own), others, strict=True)]
    else:
        free = {name: number or 1 for name, number in slots.items()}
        if len(ids) > sum(free.values()):
            named = few([f"{name}:{number}" for name, number in free.items()], 8)
            message = f"{len(ids)} tasks do not fit into {count_of(sum(free.values()), 'slot')} ({named})"
            raise SpecError(Problem("", message, "name more slots, or fewer tasks"))
        blocks = _cut(ids, free.values())
    return dict(zip(slots, blocks, strict=True))


def _shares(count: int, hosts: int) -> list[int]:
    return [(count + position) // hosts for position in reversed(range(hosts))]


def _cut(ids: Sequence[TaskId], sizes: Iterable[int]) -> list[tuple[TaskId, ...]]:
    """Blocks of these sizes, one after another."""
    rest = iter(ids)
    return [tuple(itertools.islice(rest, size)) for size in sizes]


def first_host(assignment: Assignment) -> str:
    """The first host that has tasks. TensorBoard runs there, if the spec wants it, and needs one port more."""
    return next(host for host, ids in assignment.items() if ids)


def ports_needed(ids: Iterable[TaskId], strategy: Strategy) -> int:
    """Return how many ports an agent has to hold for these tasks."""
    return sum(strategy.opens_port(task.type) for task in ids)


def count_computing(ids: Iterable[TaskId]) -> int:
    """Return how many tasks share the cores of a host: without a dispatcher and TensorBoard, which hardly compute, and a preparation."""
    return sum(task.type not in ("dispatcher", PREPARE, TENSORBOARD) for task in ids)
