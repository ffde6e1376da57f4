"""Tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, in straight columns; those in `right` end at the same place. The last column is as long as it is."""
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last)]
    return ["  ".join([*_filled(row, widths, right), row[last]]).rstrip() for row in rows]


def _filled(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [row[column].rjust(width) if column in right else row[column].ljust(width) for column, width in enumerate(widths)]
