"""Spans of time as a user writes them: ``90``, ``90s``, ``500ms``, ``2h30m``, ``1d``, ``1:30:00``; and sizes: ``500K``, ``10M``, ``2G``."""

from __future__ import annotations

import re

_UNITS = (("days", "d", 86400.0), ("hours", "h", 3600.0), ("minutes", "m", 60.0), ("seconds", "s", 1.0), ("thousandths", "ms", 0.001))
_WITH_UNITS = re.compile("".join(rf"(?:(?P<{name}>\d+(?:\.\d+)?){unit})?" for name, unit, _ in _UNITS), re.ASCII)
_CLOCK = re.compile(r"(?:(?P<hours>\d+):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{2})", re.ASCII)
"""As sbatch writes limits: minutes:seconds, hours:minutes:seconds."""
EXAMPLES = "90, 90s, 10m or 2h30m"


def seconds_of(text: str) -> float | None:
    """The seconds of a span with units; None if the text is no such span. A plain number is not read here: it has no unit."""
    found = _WITH_UNITS.fullmatch(text) or _CLOCK.fullmatch(text)
    if found is None or not text:
        return None
    parts = found.groupdict(default="0")
    return sum(float(parts.get(name, "0")) * factor for name, _, factor in _UNITS)


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])i?B?", re.ASCII | re.IGNORECASE)


def bytes_of(text: str) -> int | None:
    """The bytes of a size with a unit, of which each is 1024 times the one before; None if the text is no such size."""
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) + 1)) if found is not None else None
