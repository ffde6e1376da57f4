"""The steps that `orch verify` compares, of one process, or of all replicas of several workers, and how their numbers are related.

The tasks have written it down (worker/task/observe/recorder.py). A tensor stands there as the sums of its elements with signs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from worker.values.fast_dataclass import dataclass

STEPS = 5
"""How many steps are compared, if nothing else is said."""
NO_LINE = ("the code of a replica", "the function ")
"""How a line of the program is named that is not known."""
Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class Difference:
    kind: str
    """A word for programs: ``batch``, ``rows``, ``start``, ``loss``, ``gradient``, ``shown``, ``rate``, ``variable``, ``apart``."""
    step: int
    what: str
    place: str = ""
    """The line of the program: ``train.py:12``; empty: it is not known."""
    remedy: str = ""
    ratio: float | None = None
    """How many times the number of one process, where that is the difference."""

    @property
    def text(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"{self.what}{f'; {self.remedy}' if self.remedy else ''}{place}"


@dataclass(frozen=True, slots=True)
class World:
    """One process, or several workers: their tasks, and what their replicas have done in each step."""

    tasks: Mapping[str, Mapping[str, Any]]
    steps: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By number, from 1 on: a step of each replica, in the order of the replicas."""

    @property
    def first(self) -> Mapping[str, Any]:
        """The task that is looked at where all should be alike."""
        return next(iter(self.tasks.values()))

    def rows(self, number: int) -> Counter[int]:
        """Count how often each row was read in a step."""
        return Counter(row for step in self.steps[number] for row in step["rows"])

    def leaves(self, number: int) -> list[list[int]]:
        """The rows of each of their tensors, in the order of the replicas."""
        each = [step["leaves"] for step in self.steps[number]]
        return [[row for leaves in each for row in leaves[place]] for place in range(min(map(len, each), default=0))]

    def name(self, variable: int) -> str:
        return str(self.first["variables"][variable]["name"])

    def started(self, variable: int) -> Numbers | None:
        """The first value of a variable."""
        found: Numbers | None = self.first["started"].get(str(variable))
        return found


def world(tasks: Mapping[str, Mapping[str, Any]]) -> World:
    """Put together what the tasks of a world have written down."""
    steps: dict[int, list[Mapping[str, Any]]] = {}
    for found in tasks.values():
        for step in found["steps"]:
            steps.setdefault(step["number"], []).append(step)
    most = max(map(len, steps.values()), default=0)
    whole = {number: sorted(each, key=lambda step: step["replica"]) for number, each in steps.items() if len(each) == most}
    return World(tasks, dict(sorted(whole.items())))


def place_of(line: str) -> str:
    """A line of the program; empty: it is not known."""
    return "" if line.startswith(NO_LINE) else line


def line_of(step: Mapping[str, Any]) -> str:
    """The line of the program that begins a step, or that trains in it."""
    return next(filter(None, map(place_of, (step["line"], *(event["line"] for event in step["events"])))), "")


def add(each: Iterable[Numbers | None]) -> Numbers | None:
    """The sum of tensors; None: one of them is not known."""
    found = list(each)
    if not found or any(one is None for one in found):
        return None
    return [sum(column) for column in zip(*(one for one in found if one is not None), strict=True)]


def size(numbers: Numbers) -> float:
    """The size of a tensor: about the root of the sum of the squares of its elements."""
    return math.sqrt(sum(number * number for number in numbers) / max(1, len(numbers)))


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation of a tensor of several workers to that of one process."""

    ratio: float
    """The number by which the one is multiplied to come as near to the other as possible."""
    rest: float
    """What then is left of the difference, as a part of the larger one."""
    difference: float
    """The difference, as a part of the tensor of one process."""

    def is_ratio(self, number: float, within: float = 0.02) -> bool:
        """True if the one tensor is so many times the other."""
        return abs(self.ratio - number) < within * number and self.rest < within


def relation(one: Numbers, other: Numbers) -> Relation:
    """Relate the tensor of several workers to that of one process."""
    if not all(map(math.isfinite, (*one, *other))):
        same = [math.isfinite(each) for each in one] == [math.isfinite(each) for each in other]
        return Relation(1.0 if same else math.nan, 0.0 if same else 1.0, 0.0 if same else math.inf)
    square = sum(number * number for number in one)
    if not square:
        return Relation(0.0, 1.0, 0.0 if not any(other) else math.inf)
    ratio = sum(mine * theirs for mine, theirs in zip(one, other, strict=True)) / square
    rest = size([theirs - ratio * mine for mine, theirs in zip(one, other, strict=True)])
    difference = size([theirs - mine for mine, theirs in zip(one, other, strict=True)])
    return Relation(ratio, rest / max(abs(ratio) * size(one), size(other), 1e-300), difference / size(one))


def ratio_of(one: float, other: float) -> float:
    """Return the quotient of two numbers; NaN: unknown."""
    return other / one if one and math.isfinite(one) and math.isfinite(other) else math.nan
