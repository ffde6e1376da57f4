"""After which steps a snapshot is made: about once a second, or more rarely, so that the copies take at most 1 % of the time.

All workers must make theirs after the same steps. So after each snapshot they tell one another what a snapshot and a step take, and all
follow the one for which snapshots are the dearest.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

INTERVAL_S = 1.0
"""The time from one snapshot to the next, and so what a killed task costs at most, where `COPIES` of them would not take longer."""
COPIES = 100
"""The time between two snapshots is at least that of so many copies."""
SAVE_S = 180.0
"""The time between two saves on the disk, which outlive the loss of all hosts."""
SMALL = 1 << 24
"""Up to so many bytes, each of the first steps has a snapshot. For more, it is first measured how long a step takes."""
MEASURED_STEPS, _FIRST = 2, 5
_WARM_UP = 2
"""The first snapshots write into memory that was not used before, and TensorFlow does for the first time what they need."""


class Schedule:
    """Counts the calls of `step_ended` of one training. `size`: the bytes of a snapshot; the same on all workers."""

    def __init__(self, size: int) -> None:
        self.every = 1
        self.interval_s = 0.0
        """The time of so many steps, if there are several; 0: not known, or each step has a snapshot."""
        self.cost_s = 0.0
        """The time of a snapshot, on the worker that all follow."""
        self._save_every = 0
        """The steps from one save on the disk to the next; 0: not known."""
        self._wait, self._first = (1, _FIRST) if size <= SMALL else (MEASURED_STEPS, 1)
        self._save_wait = 0
        self._made = 0
        self._ended_at = math.nan
        self._steps: deque[float] = deque(maxlen=31)
        self._costs: deque[float] = deque(maxlen=8)

    # --- each step -------------------------------------------------------------------------------

    def step_ended(self, at: float) -> bool:
        """A step is over, at this time in seconds. Returns whether a snapshot is due."""
        if not math.isnan(self._ended_at):
            self._steps.append(at - self._ended_at)
        self._save_wait += 1
        self._wait -= 1
        return self._wait <= 0

    def made(self, seconds: float) -> None:
        self._made += 1
        self._wait = self.every
        if self._made == _WARM_UP + 1:
            self._costs.clear()
        self._costs.append(seconds)

    def step_begins(self, at: float) -> None:
        """Note that what is done after a step is over, and the next step begins."""
        self._ended_at = at

    @property
    def is_save_due(self) -> bool:
        return 0 < self._save_every <= self._save_wait

    def saved(self) -> None:
        self._save_wait = 0

    # --- all workers together ----------------------------------------------------------------------

    def numbers(self) -> tuple[int, int]:
        """The time of a snapshot and of a step, in microseconds. A step of 0: not known."""
        steps = statistics.median(self._steps) if self._steps else 0.0
        return math.ceil(1e6 * statistics.median(self._costs)), round(1e6 * steps)

    def agree(self, all_numbers: Sequence[Sequence[int]]) -> None:
        """`all_numbers`: of all workers, after a snapshot."""
        longest = max(step for _, step in all_numbers)
        if self._made < self._first or not all(step for _, step in all_numbers):
            return
        self.every = max(1, int(1e6 * INTERVAL_S) // longest, *(math.ceil(COPIES * cost / step) for cost, step in all_numbers))
        self.interval_s = self.every * longest / 1e6 if self.every > 1 else 0.0
        self.cost_s = max(cost for cost, _ in all_numbers) / 1e6
        self._save_every = max(1, math.ceil(SAVE_S * 1e6 / longest))
        self._wait = self.every
