"""The time, as this process tells it: the system's clock when it began, and from then on a clock that nobody sets.

What happened is put in order by its time, and deadlines are counted from it: a system clock that is set while a run goes on (by a
person, by NTP after a suspend) must change neither. CLOCK_MONOTONIC stands still while the machine sleeps, and so do the deadlines.
"""

from __future__ import annotations

import os
import time

JUST_S = 3600.0
"""How long ago "just past" may be: who was to hear of it may have been stopped meanwhile."""

_anchor = time.time() - time.monotonic()


def patience(seconds: float) -> float:
    """How long to wait for somebody, or before something is said: `seconds`, times ORCH_TIME_SCALE where a test has set that.

    For constants of a module; so that no test has to sit them out.
    """
    return seconds * float(os.environ.get("ORCH_TIME_SCALE", "1"))


def begin() -> None:
    """Look at the system's clock again: in a fork that is to be a process in its own right."""
    global _anchor
    _anchor = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch."""
    return _anchor + time.monotonic()


def from_monotonic(at: float) -> float:
    """A moment told by this machine's CLOCK_MONOTONIC, which all its processes share."""
    return _anchor + at


def from_system(at: float) -> float:
    """A moment just past, told by the system's clock, as this clock tells it; now, if that clock has been set far since."""
    for _ in range(5):  # we may be put off between the two looks, and what has just happened would be long past
        here = now()
        ahead = here - time.time()
        if now() - here < 0.001:
            break
    moment = at + ahead
    return moment if 0 <= here - moment < JUST_S else here
