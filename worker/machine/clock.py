"""The time of this process: the system's clock when the process began, and from then on a clock that no one can set.

Events are ordered by their times, and deadlines are counted from them. A system clock that is set during a run (by a person, or by NTP
after a suspend) must change neither. CLOCK_MONOTONIC stands still while the machine sleeps, and so do the deadlines.
"""

from __future__ import annotations

import os
import time

RECENT_S = 3600.0
"""A time that `from_system` converts is at most this long ago, in seconds. The process that reads the time may have been stopped."""

_anchor = time.time() - time.monotonic()


def patience(seconds: float) -> float:
    """A waiting time of `seconds`, times ORCH_TIME_SCALE if a test has set that variable to a number. For constants of a module."""
    try:
        return seconds * float(os.environ.get("ORCH_TIME_SCALE", "1"))
    except ValueError:
        return seconds


def reset() -> None:
    """Read the system's clock again: in a fork that becomes a process of its own."""
    global _anchor
    _anchor = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch."""
    return _anchor + time.monotonic()


def from_monotonic(at: float) -> float:
    """The time `at` of this machine's CLOCK_MONOTONIC, which all its processes share, by this clock."""
    return _anchor + at


def from_system(at: float) -> float:
    """A recent time `at` of the system's clock, by this clock; now, if the system's clock has been set since."""
    for _ in range(5):  # the process may be interrupted between the two readings; then the difference is wrong
        here = now()
        ahead = here - time.time()
        if now() - here < 0.001:
            break
    moment = at + ahead
    return moment if 0 <= here - moment < RECENT_S else here
