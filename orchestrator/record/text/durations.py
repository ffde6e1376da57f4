"""Times in words."""

from __future__ import annotations

import time


def describe_seconds(seconds: float) -> str:
    """``0.4 s``, ``2 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:  # what rounds to 60.0 is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def describe_moment(at: float) -> str:
    """Date and time of day, in the local zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
