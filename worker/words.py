"""Numbers and lists in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def count_of(number: int, word: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def few(names: Sequence[str], most: int = 4) -> str:
    """``a, b, c, d``; of more than `most` the last ones are only counted: ``a, b, c, 7 more``."""
    return ", ".join(names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1:,} more"])
