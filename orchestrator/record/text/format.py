"""Durations, times, tables and paragraphs as text."""

from __future__ import annotations

import json
import math
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from .lines import clean


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


def iso_times(data: Any) -> Any:
    """JSON data whose times (keys that end with ``at``) are texts in UTC, ``2026-11-21T14:30:00.123+00:00``, and no seconds."""
    if isinstance(data, Mapping):
        return {key: _iso(value) if is_time(key, value) else iso_times(value) for key, value in data.items()}
    return [iso_times(item) for item in data] if isinstance(data, (list, tuple)) else data


def json_text(data: Any, **options: Any) -> str:
    """Data as JSON. Numbers that JSON does not have become texts, as in reports: ``"nan"``, ``"inf"``, ``"-inf"``."""
    try:
        return json.dumps(data, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_with_words(data), allow_nan=False, **options)


def _with_words(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key) if isinstance(key, float) else key: _with_words(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_with_words(item) for item in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def is_time(key: str, value: object) -> bool:
    """True if a value of JSON data is a time."""
    return (key == "at" or key.endswith("_at")) and isinstance(value, (int, float)) and not isinstance(value, bool)


def _iso(at: float) -> str | float:
    try:
        return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a task may report any number under such a name
        return at


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, in columns of the terminal. The columns in `right` are aligned to the right; the last column is not filled.

    The cells may be names from a record that somebody else has written: terminal commands are dropped.
    """
    rows = [[clean(cell) for cell in row] for row in rows]
    last = len(rows[0]) - 1
    widths = [max(display_width(row[column]) for row in rows) for column in range(last)]
    filled = ([pad(row[column], width, is_right=column in right) for column, width in enumerate(widths)] for row in rows)
    return ["  ".join([*columns, row[last]]).rstrip() for columns, row in zip(filled, rows, strict=True)]


def cut(lines: Sequence[str], width: int | None) -> list[str]:
    """The lines in at most `width` columns each; None: as they are."""
    return [line if width is None else fit(line, width) for line in lines]


def display_width(text: str) -> int:
    """Return how many columns a terminal takes for a text: two for wide characters (UAX 11), none for marks that stand above others."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    """The text with blanks before or behind it, up to this width."""
    blanks = " " * max(0, width - display_width(text))
    return blanks + text if is_right else text + blanks


def fit(text: str, width: int) -> str:
    """The text, cut to this width; a cut text ends with ``…``."""
    if display_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _width(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """The text in lines of at most `width` characters or one word, without terminal commands. `first`, `rest`: the indents."""
    others = first if rest is None else rest
    return textwrap.wrap(clean(text), width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False)
