"""Durations, times, tables and paragraphs as text, and times read from text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence
from datetime import datetime, time, timedelta

from ..output.lines import clean


def describe_seconds(seconds: float) -> str:
    """``0.4 s``, ``2 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:  # 59.95 would be shown as 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def describe_moment(at: float) -> str:
    """``2026-11-21 14:30:00``, in the local zone. `at`: seconds since the epoch."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, in columns. The columns in `right` are aligned to the right; the last column is not filled."""
    last = len(rows[0]) - 1
    widths = [(column, max(len(row[column]) for row in rows)) for column in range(last)]
    filled = ([row[column].rjust(width) if column in right else row[column].ljust(width) for column, width in widths] for row in rows)
    return ["  ".join([*columns, row[last]]).rstrip() for columns, row in zip(filled, rows, strict=True)]


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """The text in lines of at most `width` characters, unless a word is longer, and without terminal commands.

    `first`: the indent of the first line. `rest`: the indent of the other lines, if it differs.
    """
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


_AGO = re.compile(r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s?)?", re.ASCII)


def moment(text: str, now: datetime) -> float | None:
    """A time that a user has written, in seconds since the epoch; None if the text is no time.

    ``90`` (seconds ago), ``90s``, ``2h30m``, ``1d``, ``1d ago``, ``14:30`` (the last one), ``2026-11-21T14:30``.
    A time without a zone is in the zone of `now`.
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
