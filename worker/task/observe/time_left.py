"""The progress of this training and the time left: one line of orch's own next to the reports, at most once a second.

The pace is that of this attempt: a restart begins a new count, and says nothing before `LEAST` windows of it. The first window is left out,
for it has the tracing of the program's functions.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW_S, LEAST, MOST = 1.0, 5, 60
"""The shortest window in seconds; how many windows are needed for a pace; and over how many of the newest ones it is taken."""


class Pace:
    """Seconds per step, over the newest windows of steps."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=MOST + 1)
        """The seconds and the steps at the ends of windows."""

    def mark(self, seconds: float, step: float) -> float | None:
        """So many steps took so many seconds by now. Returns the pace; None: it is not known yet."""
        if self._marks and step < self._marks[-1][1]:  # a loop that begins again
            self._marks.clear()
        if not self._marks or (seconds - self._marks[-1][0] >= WINDOW_S and step > self._marks[-1][1]):
            self._marks.append((seconds, step))
        if len(self._marks) <= LEAST:
            return None
        (first_s, first), (last_s, last) = self._marks[1], self._marks[-1]
        return (last_s - first_s) / (last - first)


class FitProgress:
    """The progress of one `fit`, which `worker.task.keras.callbacks` follows."""

    def __init__(self, fit: int, *, may_stop: bool) -> None:
        self._fit, self._may_stop, self._pace = fit, may_stop, Pace()
        self._epochs, self._seconds, self._steps, self._extra_s = 0, 0.0, 0, 0.0
        """Of the epochs that have ended: the number, the seconds of steps, the steps, and all other seconds (validation, saves)."""
        self.steps: int | None = None
        """The steps of an epoch; None: the data do not say, and no epoch has ended."""

    def end_epoch(self, steps: int, trained_s: float, whole_s: float) -> None:
        """An epoch has had so many steps, which took `trained_s` seconds of its `whole_s`."""
        self._epochs, self._seconds, self._steps = self._epochs + 1, self._seconds + trained_s, self._steps + steps
        self._extra_s += max(0.0, whole_s - trained_s)
        self.steps = self.steps or steps or None

    def tell(self, params: Mapping[str, Any], epoch: int, step: int, trained_s: float) -> dict[str, Any]:
        """The line of orch's own after this step of this epoch, which is counted from 1; empty: the progress is not known.

        `params`: Keras's of the callback. The steps of this epoch took `trained_s` seconds by now.
        """
        epochs, self.steps = params.get("epochs"), params.get("steps") or self.steps
        pace = self._pace.mark(self._seconds + trained_s, self._steps + step)
        if not isinstance(epochs, int) or epochs < 1 or not self.steps:
            return {}
        if epoch > epochs:  # `fit` is over, and the program goes on
            return {"fit": self._fit, "fraction": 1.0}
        done = (epoch - 1) * self.steps + min(step, self.steps)
        said: dict[str, Any] = {"fit": self._fit, "fraction": round(done / (epochs * self.steps), 4)}
        if pace is not None:
            left_s = (epochs * self.steps - done) * pace + self._extra_s / max(1, self._epochs) * (epochs - epoch + 1)
            hedge = "at most" if self._may_stop else "" if self._epochs else "about"
            said |= {"left_s": round(left_s, 1), "step_s": round(pace, 6), "hedge": hedge}
        return said


_pace = Pace()
_told_at = -math.inf


def follow(step: float, of: Any) -> dict[str, Any] | None:
    """The line of orch's own after the program has reported this step of so many; None: there is nothing to say, or one was just told."""
    global _told_at
    now = time.monotonic()
    if not isinstance(of, (int, float)) or isinstance(of, bool) or not 0 <= step <= of or of <= 0 or now - _told_at < WINDOW_S:
        return None
    _told_at = now
    pace = _pace.mark(now, step)
    said = {"fraction": round(step / of, 4)}
    return said if pace is None else {**said, "left_s": round((of - step) * pace, 1), "step_s": round(pace, 6)}
