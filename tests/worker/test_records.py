"""Our frozen dataclasses behave as those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from worker.records import dataclass


@dataclass(frozen=True, slots=True)
class Quick:
    number: int
    words: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Other:
    number: int
    words: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict)


def test_it_is_a_dataclass() -> None:
    quick = Quick(1, words=("a",))
    assert dataclasses.is_dataclass(quick)
    assert repr(quick) == "Quick(number=1, words=('a',), more={})"
    assert Quick.__match_args__ == ("number", "words", "more")
    assert not hasattr(quick, "__dict__")
    assert dataclasses.asdict(quick) == {"number": 1, "words": ("a",), "more": {}}
    assert dataclasses.replace(quick, number=2) == Quick(2, ("a",))
    assert pickle.loads(pickle.dumps(quick)) == copy.deepcopy(quick) == quick
    assert quick.more is not Quick(1).more
    with pytest.raises(TypeError, match="unexpected keyword"):
        Quick(1, colour="red")  # type: ignore[call-arg]


def test_it_stays_as_it_is() -> None:
    quick: Any = Quick(1)
    for name in ("number", "words", "colour"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(quick, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
        del quick.number
    assert quick == Quick(1)


def test_equal_ones_are_of_one_class_and_have_equal_values() -> None:
    assert Quick(1, ("a",)) == Quick(1, ("a",))
    assert Quick(1, ("a",)) != Quick(2, ("a",))
    unlike: Any = Other(1, ("a",))
    assert Quick(1, ("a",)) != unlike
    assert Quick(1) != 1


def test_it_is_a_key() -> None:
    @dataclass(frozen=True, slots=True)
    class Key:
        name: str
        number: int

    assert {Key("a", 1): "found"}[Key("a", 1)] == "found"
    assert len({Key("a", 1), Key("a", 1), Key("a", 2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Quick(1))


def test_others_are_the_standard_librarys() -> None:
    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        number: int

    @dataclass
    class Bare:
        number: int

    assert sorted([Ordered(2), Ordered(1)]) == [Ordered(1), Ordered(2)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ordered(1).number = 2
    bare = Bare(1)
    bare.number = 2
    assert bare == Bare(2)


def test_one_that_is_compared_in_its_own_way_is_refused() -> None:
    with pytest.raises(TypeError, match="some of its fields only"):

        @dataclass(frozen=True, slots=True)
        class Partly:
            number: int = field(compare=False)

    with pytest.raises(TypeError, match="its own way of __eq__"):

        @dataclass(frozen=True, slots=True)
        class Own:
            number: int

            def __eq__(self, other: object) -> bool:
                return True
