"""Slurm's short forms of lists: node names, and a number for each node. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST = 100_000
"""More nodes than any cluster has: a list that names more is a mistake."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TIMES = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand(text: str) -> tuple[str, ...]:
    """The names of a node list in Slurm's order, which is not the order of texts: ``n[9-11],gpu-a`` is n9, n10, n11, gpu-a.

    Zeros in front stay (``n[07-12]``), and a name may have several brackets (``r[1-2]n[01-04]``), of which the last one counts fastest.
    Raises `ValueError`.
    """
    names = []
    for part in _parts(text):
        pieces = _BRACKETS.split(part)  # text and the inside of a bracket, in turn
        if any("[" in piece or "]" in piece for piece in pieces) or not part:
            raise ValueError(f"{text!r} is no list of nodes")
        choices = [list(_numbers(piece, text)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        for words in itertools.product(*choices):
            names.append("".join(words))
            if len(names) > MOST:
                raise ValueError(f"a list of more than {MOST:,} nodes")
    return tuple(names)


def _parts(text: str) -> list[str]:
    """The parts between the commas that are in no bracket."""
    return re.split(r",(?![^\[]*\])", text)


def _numbers(inside: str, text: str) -> Iterator[str]:
    for word in inside.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{text!r} is no list of nodes")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) >= MOST:
            raise ValueError(f"a list of more than {MOST:,} nodes")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"


def expand_counts(text: str) -> tuple[int, ...]:
    """A number for each node: ``2(x3),1`` is 2, 2, 2, 1. Raises `ValueError`."""
    counts: list[int] = []
    for word in text.split(","):
        found = _TIMES.fullmatch(word)
        if found is None or int(found[2] or 1) > MOST:
            raise ValueError(f"{text!r} is no list of numbers")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)
