"""A case of the judge, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from worker.values.fast_dataclass import dataclass

from .place import Place

Result = dict[str, Any]
Area = Literal["optimizers", "losses", "metrics", "layers", "models", "inputs", "callbacks", "endings", "loops", "draws"]
FORMS = ("even", "uneven", "tiny")


@dataclass(frozen=True)
class Case:
    """One use of Keras or of a strategy, and what is compared of it."""

    name: str
    area: Area
    run: Callable[[Place], Result]
    forms: tuple[str, ...] = FORMS
    """The forms of data: see `place.ROWS`."""
    rows: tuple[str, ...] = ()
    """The names of the rows, if the case has several: the result then has an entry for each."""
    compare: Literal["one process", "workers", "finite"] = "one process"
    """``workers``: one process cannot have the same data. ``finite``: each replica draws its own random numbers."""
    because: str = ""
    """Why the numbers are not compared with those of one process."""
    says: str | Mapping[str, str] = ""
    """A regular expression that the line must match that says a difference, for all rows or by row. Where none is given, only a line about
    parts of different size says a difference.
    """

    model: str = ""
    """Cases that have the same text here, and follow each other, train one model: what is traced of the model is traced once."""

    def words_of(self, row: str) -> str:
        return self.says if isinstance(self.says, str) else self.says.get(row, "")


CLIPPED = r"clip\w+: Keras clips on each of the"
ONE_NUMBER = "a loss function that returns one number"
NO_MEAN = "is not a mean over rows, so the numbers of"
MASKED = "a mask makes the loss a mean|a mean over elements that are not masked"
OWN_STATE = "the variable .* in each worker|each worker assigns a value of its own"
"""What lines have that say a difference."""

CASES: dict[str, Case] = {}


def add(case: Case) -> None:
    known = {row for other in CASES.values() for row in (other.name, *other.rows)}
    assert known.isdisjoint((case.name, *case.rows)), case.name
    CASES[case.name] = case


def case(area: Area, name: str = "", **options: Any) -> Callable[[Callable[[Place], Result]], Callable[[Place], Result]]:
    """Make a case of a function. Its name, if none is given, is that of the function with blanks."""

    def make(function: Callable[[Place], Result]) -> Callable[[Place], Result]:
        add(Case(name or function.__name__.replace("_", " "), area, function, **options))
        return function

    return make


def find(name: str) -> Case:
    """The case of this name; ``draw 17`` is made of the number."""
    if name.startswith("draw "):
        from .cases import draws

        return draws.case_of(int(name.removeprefix("draw ")))
    return CASES[name]


def units(cases: Iterable[Case], forms: Iterable[str] = FORMS) -> list[tuple[str, str]]:
    """Each case with each of its forms of data, in the order in which they run."""
    return [(case.name, form) for case in cases for form in case.forms if form in forms]
