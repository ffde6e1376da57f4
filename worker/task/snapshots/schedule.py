"""After which steps a snapshot is made: as often as all snapshots together take less than a share of the time.

All workers must make theirs after the same steps. So at some snapshots they tell one another what a snapshot and a step take, and all
follow the one for which snapshots are the dearest.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

SHARE = 0.007
"""The share of the time that the copies may take. What is left of the 1 % is for what the copies cost besides, such as cold caches."""
SHARE_BESIDE_RECORDS = 0.003
"""The same where the survivors of a failure keep each step: a snapshot is needed only if all workers die, and records cost some, too."""
SAVE_S = 180.0
"""The time between two saves on the disk, which outlive the loss of all hosts."""
SMALL = 1 << 24
"""Up to so many bytes, the first step has a snapshot. For more, it is first measured how long steps take."""
MEASURED_STEPS = 8
_TALKS, _TALKS_IF_LARGE, _TALKS_EVERY = frozenset({4, 8, 32, 128}), frozenset({1, 2, 4, 8, 32, 128}), 256
"""After which snapshots the workers talk."""
_WARM_UP = 2
"""The first snapshots write into memory that was not used before, and TensorFlow does for the first time what they need."""


class Schedule:
    """Counts the calls of `step_ended` of one training. `size`: the bytes of a snapshot; the same on all workers. `share`: of the time."""

    def __init__(self, size: int, share: float = SHARE) -> None:
        self._share = share
        self.every = 1
        """The steps from one snapshot to the next."""
        self._save_every = 0
        """The steps from one save on the disk to the next; 0: not known."""
        self._wait, self._talks = (1, _TALKS) if size <= SMALL else (MEASURED_STEPS, _TALKS_IF_LARGE)
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
        """A snapshot was made."""
        self._made += 1
        self._wait = self.every
        if self._made == _WARM_UP + 1:
            self._costs.clear()
        self._costs.append(seconds)

    def step_begins(self, at: float) -> None:
        """What is done after a step is over, and the next step begins."""
        self._ended_at = at

    @property
    def is_save_due(self) -> bool:
        return 0 < self._save_every <= self._save_wait

    def saved(self) -> None:
        """The training was saved on the disk."""
        self._save_wait = 0

    # --- all workers together ----------------------------------------------------------------------

    @property
    def is_talk_due(self) -> bool:
        """Whether the workers tell one another their numbers now, after the snapshot that was just made."""
        return self._made in self._talks or self._made % _TALKS_EVERY == 0

    def numbers(self) -> tuple[int, int]:
        """The time in which one snapshot is within the share, and that of a step, in microseconds. A step of 0: not known."""
        steps = statistics.median(self._steps) if self._steps else 0.0
        return math.ceil(1e6 * statistics.median(self._costs) / self._share) if self._costs else 0, int(1e6 * steps)

    def agree(self, all_numbers: Sequence[Sequence[int]]) -> None:
        """`all_numbers`: of all workers."""
        known = [(wait, step) for wait, step in all_numbers if step > 0]
        if len(known) == len(all_numbers):
            self.every = max(1, *(math.ceil(wait / step) for wait, step in known))
            self._save_every = max(1, math.ceil(SAVE_S * 1e6 / max(step for _, step in known)))
            self._wait = self.every
