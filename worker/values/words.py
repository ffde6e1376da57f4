"""Numbers and lists in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def count_of(number: int, word: str) -> str:
    """``1 device``, ``2 devices``, ``2 batches``."""
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('ch') else 's'}"


def few(names: Sequence[str], most: int = 4) -> str:
    """``a, b, c, d``. The last of more than `most` names are only counted: ``a, b, c, 7 more``."""
    return ", ".join(names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1:,} more"])


def bytes_of(count: int) -> str:
    """A number of bytes: ``340 MB``, ``1.5 GB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.1f} {unit}"
