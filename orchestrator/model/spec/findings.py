"""What is wrong with a document: the findings themselves, and the words they are told in."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import Problem
from .tree import Node

MAX_FINDINGS = 100


class Findings:
    """What has been found wrong so far, and where."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._left_out = 0
        self._spoiled: set[str] = set()

    def add(self, node: Node, path: str, message: str, hint: str = "") -> None:
        """Notes that the value at `path` is wrong, in words that go on from the path: ``must be at least 1, not 0``."""
        self.note(Problem(node.place, about(path, message), hint), spoils=path)

    def note(self, problem: Problem, *, spoils: str | None = None) -> None:
        """Notes a problem. `spoils`: the path whose value cannot be relied on because of it, if any."""
        if spoils is not None:
            self._spoiled.add(spoils)
        if self.full:
            self._left_out += 1
        else:
            self._problems.append(problem)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first `MAX_FINDINGS` problems, and how many more there are."""
        more = (Problem("", f"and {self._left_out:,} more"),) if self._left_out else ()
        return (*self._problems, *more)

    @property
    def full(self) -> bool:
        """Whether further problems are only counted."""
        return len(self._problems) >= MAX_FINDINGS

    def sound(self, paths: Iterable[str]) -> bool:
        """Whether nothing was found wrong with these paths, nor with a mapping around them."""
        around = {"", *(path[:end] for path in paths for end, mark in enumerate(path + ".") if mark == ".")}
        return around.isdisjoint(self._spoiled)


def about(path: str, message: str) -> str:
    """The message with the path in front, unless that is the whole document."""
    return f"{path}: {message}" if path else message


# --- words --------------------------------------------------------------------------------------


def nearest(word: str, words: Iterable[str]) -> str:
    """The one of `words` that was probably meant, or an empty text. Case and ``-``/``_`` make no difference."""
    if len(word) > 80:
        return ""
    import difflib  # here, because only a mistake needs it

    plain = {_plain(right): right for right in words}
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""


def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "")


def listed(words: Iterable[str], last: str = "and") -> str:
    """``a, b and c``."""
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end


def shown(node: Node) -> str:
    """A value in a message: what kind it is, and its text if it has one."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None:
        return "nothing"
    return quoted(node.text) if isinstance(node.value, str) else shortened(node.text)


def quoted(text: str) -> str:
    """A text in quotes, cut to a line's worth, with everything unprintable escaped."""
    return repr(shortened(text))


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
