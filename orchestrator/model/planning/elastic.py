"""An elastic cluster (``--workers MIN:MAX``): how many workers an attempt has, on the hosts that there are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..settings import ClusterSpec

ELASTIC = "ORCH_ELASTIC"
"""The variable with the fewest workers, in each task of an elastic cluster."""
BACK_S, BACK_MOST_S = 10.0, 3600.0
"""How often an elastic cluster looks whether a host that it lacks is back, and how seldom where this was of no use."""


def with_workers(spec: ClusterSpec, count: int) -> ClusterSpec:
    return replace(spec, tasks=tuple(replace(tasks, count=count) if tasks.type == "worker" else tasks for tasks in spec.tasks))


def capacity(spec: ClusterSpec, slots: Mapping[str, int | None]) -> dict[str, int]:
    """Return how many tasks each host takes. Hosts without slots take an equal share of all tasks of the largest cluster."""
    if all(number is None for number in slots.values()):
        return dict.fromkeys(slots, -(-spec.size // max(1, len(slots))))
    return {name: number or 1 for name, number in slots.items()}


def fit(spec: ClusterSpec, room: int) -> ClusterSpec | None:
    """The spec with as many workers as have room and divide the global batch. None: they are too few."""
    if not spec.least_workers:
        return spec
    workers = spec.counts["worker"]
    batch = spec.input.global_batch_size
    for count in range(min(workers, room - (spec.size - workers)), spec.least_workers - 1, -1):
        if not batch or batch % count == 0:
            return with_workers(spec, count)
    return None


def pause_after(pause_s: float, workers: int, now: int) -> float:
    """The pause before the next look for hosts that are back, after a restart for one with so many workers has led to `now` of them.

    A host that is back and cannot be used costs a restart each time: the pauses get longer.
    """
    return BACK_S if now > workers else min(2 * pause_s, BACK_MOST_S)


def describe(spec: ClusterSpec) -> Iterator[str]:
    """A line about what another number of workers changes."""
    if spec.least_workers:
        yield (
            f"elastic, at least {spec.least_workers} workers. Not exact: dropout, BatchNormalization, and the metrics of a resumed epoch"
        )
