"""How durations, moments and tables are written, and how moments are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, time, timedelta


def describe_seconds(seconds: float) -> str:
    """``0.4 s``, ``2 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:  # what rounds to 60.0 is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def describe_moment(at: float) -> str:
    """Date and time of day, in the local zone."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, in straight columns; those in `right` end at the same place. The last column is as long as it is."""
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last)]
    return ["  ".join([*_filled(row, widths, right), row[last]]).rstrip() for row in rows]


def _filled(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [row[column].rjust(width) if column in right else row[column].ljust(width) for column, width in enumerate(widths)]


_AGO = re.compile(r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s?)?", re.ASCII)


def moment(text: str, now: datetime) -> float | None:
    """What ``90``, ``90s``, ``2h30m``, ``1d`` or ``1d ago``, ``14:30`` (the last one) or ``2026-11-21T14:30`` means, in
    seconds since the epoch.

    A time without a zone is one of `now`'s, which has one. None: it is none of these.
    """
    span = text.removesuffix(" ago")
    ago = _AGO.fullmatch(span)
    try:
        if ago is not None and span:
            return (now - timedelta(**{name: float(number) for name, number in ago.groupdict(default="0").items()})).timestamp()
        if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d+)?)?", text, re.ASCII):
            at = datetime.combine(now.date(), time.fromisoformat(text), now.tzinfo)
            return (at if at <= now else at - timedelta(days=1)).timestamp()
        at = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return (at if at.tzinfo else at.replace(tzinfo=now.tzinfo)).timestamp()
    except (ValueError, OverflowError):
        return None
