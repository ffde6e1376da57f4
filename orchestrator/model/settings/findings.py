"""The mistakes found in a document, and functions for their messages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import Problem
from .tree import Node

MAX_FINDINGS = 100


class Findings:
    """The mistakes found so far, with their places."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.spoiled: set[str] = set()
        """The keys of the whole document that have a mistake: the rules between keys do not look at them."""

    def add(self, path: str, problem: Problem) -> None:
        """Add a mistake at `path`. The message continues the path: ``must be at least 1, not 0``. An empty path is the whole document."""
        self.spoiled.add(path.partition(".")[0])
        key = _unsaid(path, problem.place)
        self.found.append(Problem(problem.place, f"{key}: {problem.message}" if key else problem.message, problem.hint))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first `MAX_FINDINGS` problems, and the number of the others."""
        more = len(self.found) - MAX_FINDINGS
        return (*self.found[:MAX_FINDINGS], *([Problem("", f"and {more:,} more")] if more > 0 else []))

    @property
    def full(self) -> bool:
        """True if more problems are only counted."""
        return len(self.found) >= MAX_FINDINGS


_SETTING = re.compile(r"--(?!set$)([\w-]+)|ORCH_(\w+)|launch\((\w+)=|(ARGS|SCRIPT)$")


def _unsaid(path: str, place: str) -> str:
    """Return what the place leaves out of the path: nothing after ``--timeout``, ``a.slots`` of ``backend.hosts.a.slots``."""
    if (setting := _SETTING.match(place)) is None:
        return path
    name = next(filter(None, setting.groups())).casefold().replace("-", "_")
    is_mapping = name == "hosts" or (setting[3] and path.startswith(f"{name}."))  # other options are one value: --backend is backend.type
    return f".{path}".partition(f".{name}.")[2] if is_mapping else ""


# --- messages -----------------------------------------------------------------------------------


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """The nearest of `words`, or an empty text if none is as like as `cutoff` (difflib's ratio). Case, ``-`` and ``_`` do not matter."""
    if len(word) > 80:
        return ""
    import difflib  # imported here: only a mistake needs difflib

    plain = {_plain(right): right for right in words}
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else ""


def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "")


def listed(words: Iterable[str], last: str = "and") -> str:
    """``a, b and c``."""
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end


def shown(node: Node) -> str:
    """A value in a message: its text, or its type."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None:
        return "nothing"
    return quoted(node.text) if isinstance(node.value, str) else shortened(node.text)


def quoted(text: str) -> str:
    """A text in quotes, shortened, with escapes for unprintable characters."""
    return repr(shortened(text))


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
