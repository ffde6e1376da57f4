"""Which tasks there are, and which go to which host: from their counts and the hosts' slots, before any host is asked. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from worker.contract import DATA_SERVICE, TaskId

from .spec import HostSpec
from .strategies import Strategy

Assignment = Mapping[str, tuple[TaskId, ...]]
"""Which tasks go to which host."""


def count_slots(hosts: Sequence[HostSpec]) -> dict[str, int] | None:
    """How many tasks each host takes; None if no host says so."""
    if all(host.slots is None for host in hosts):
        return None
    return {host.name: host.slots or 1 for host in hosts}


def task_ids(counts: Mapping[str, int]) -> Iterator[TaskId]:
    """Every task, in the order of `counts`, which is TensorFlow's order of types."""
    for kind, count in counts.items():
        for index in range(count):
            yield TaskId(kind, index)


def assign(counts: Mapping[str, int], slots: Mapping[str, int] | None, hosts: Sequence[str]) -> dict[str, tuple[TaskId, ...]]:
    """Which tasks go to which host, in order: as many as each has slots, or blocks whose sizes differ by one at most if `slots` is None.

    Then the servers of a tf.data service fill what the others have left. A host may get none.
    """
    ids = list(task_ids(counts))
    training = [task for task in ids if task.type not in DATA_SERVICE]
    if slots is not None:
        blocks = _cut(ids, [slots.get(host, 0) for host in hosts])
    else:
        sizes, own = _shares(len(ids), len(hosts)), _shares(len(training), len(hosts))
        others = _cut(ids[len(training) :], [size - mine for size, mine in zip(sizes, own, strict=True)])
        blocks = [mine + other for mine, other in zip(_cut(training, own), others, strict=True)]
    return dict(zip(hosts, blocks, strict=True))


def _shares(count: int, hosts: int) -> list[int]:
    return [(count + position) // hosts for position in reversed(range(hosts))]


def _cut(ids: Sequence[TaskId], sizes: Iterable[int]) -> list[tuple[TaskId, ...]]:
    """Blocks of these sizes, one after another."""
    rest = iter(ids)
    return [tuple(itertools.islice(rest, size)) for size in sizes]


def ports_needed(ids: Iterable[TaskId], strategy: Strategy) -> int:
    """How many ports an agent has to hold for these tasks."""
    return sum(strategy.opens_port(task.type) for task in ids)


def count_computing(ids: Iterable[TaskId]) -> int:
    """How many tasks share a host's cores. A dispatcher hardly needs any."""
    return sum(task.type != "dispatcher" for task in ids)
