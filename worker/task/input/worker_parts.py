"""Describes how many elements each worker takes of each global batch, and so of an epoch in which all workers end together. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts of the workers, as `batch_sizes_for_worker` in tensorflow/python/data/experimental/ops/distribute.py cuts them.

    If the replicas do not divide the batch, the parts change from step to step: with batches of 5, worker 0 takes 3, 2, 3, 2 elements, and
    worker 1 takes 2, 3, 2, 3.
    """

    batch: int
    workers: int
    replicas: int = 1

    @property
    def are_equal(self) -> bool:
        """True if each worker takes the same number of elements in each step."""
        return self.batch % (self.workers * self.replicas) == 0

    def sizes(self, worker: int) -> list[int]:
        """The elements that a worker takes in one step after the other. These sizes come again and again; their sum is `batch`."""
        count = self.workers * self.replicas
        floor, larger = divmod(self.batch, count)
        parts = [floor + 1] * larger + [floor] * (count - larger)
        first = worker * self.replicas
        own = parts[first:] + parts[:first]
        return [sum(own[at : at + self.replicas]) for at in range(0, count, self.replicas)]

    def taken(self, worker: int, steps: int) -> int:
        """The elements that a worker takes in the first steps."""
        rounds, rest = divmod(steps, self.workers)
        return rounds * self.batch + sum(self.sizes(worker)[:rest])

    def of_epochs(self, held: Sequence[int]) -> list[list[int]]:
        """For each worker the number of elements that it takes in an epoch of whole global batches, if it holds so many.

        All epochs have the same number of steps. The numbers are for the epochs 0, 1, ... and come again from the first on.
        """
        steps = self.workers * min(held) // self.batch + self.workers
        while steps and any(self._most(worker, steps) > held[worker] for worker in range(self.workers)):
            steps -= 1
        epochs = 1 if self.are_equal else self.workers
        return [
            [self.taken(worker, (epoch + 1) * steps) - self.taken(worker, epoch * steps) for epoch in range(epochs)]
            for worker in range(self.workers)
        ]

    def _most(self, worker: int, steps: int) -> int:
        """The largest number of elements in so many steps, whichever step is the first."""
        return max(self.taken(worker, first + steps) - self.taken(worker, first) for first in range(self.workers))

    def ends(self, held: int) -> list[int]:
        """For each worker the number of elements, of the `held` ones that each has, after which all workers end in the same step."""
        steps = self.workers * held // self.batch + self.workers
        while steps and any(self.taken(worker, steps) > held for worker in range(self.workers)):
            steps -= 1
        full = [self.taken(worker, steps) for worker in range(self.workers)]
        last = [min(held, self.taken(worker, steps + 1)) for worker in range(self.workers)]
        return last if all(more > whole for more, whole in zip(last, full, strict=True)) else full
