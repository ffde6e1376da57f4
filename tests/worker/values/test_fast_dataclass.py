"""Our frozen dataclasses behave as those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from worker.values.fast_dataclass import dataclass


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


def test_wrong_arguments_are_refused() -> None:
    make: Any = Quick
    with pytest.raises(TypeError, match=r"Quick\(\) takes number, words, more, and got 1 values and \['colour'\]"):
        make(1, colour="red")
    with pytest.raises(TypeError, match=r"got 1 values and \['number'\]"):
        make(1, number=2)
    with pytest.raises(TypeError, match=r"got 0 values and \['words'\]"):
        make(words=())
    with pytest.raises(TypeError, match="got 4 values"):
        make(1, (), {}, 4)


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    @dataclass(frozen=True, slots=True)
    class Quicker(Quick):
        speed: float = 1.0

    assert Quicker(1, speed=2.0) == Quicker(1, (), {}, 2.0)
    assert [one.name for one in dataclasses.fields(Quicker)] == ["number", "words", "more", "speed"]
    assert not hasattr(Quicker(1), "__dict__")


def test_it_stays_as_it_is() -> None:
    quick: Any = Quick(1)
    for name in ("number", "words", "colour"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(quick, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot change field 'number'"):
        del quick.number
    assert quick == Quick(1)
    unmade: Any = object.__new__(Quick)
    with pytest.raises(dataclasses.FrozenInstanceError):  # not even a field that has no value yet
        unmade.number = 1


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


def test_what_a_class_has_of_its_own_stays() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        limit: ClassVar[int] = 3
        number: int

        def __eq__(self, other: object) -> bool:
            return True

    assert Own(1) == Own(2)
    assert (Own.limit, [one.name for one in dataclasses.fields(Own)]) == (3, ["number"])


def test_a_default_that_could_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mutable default .* for field words"):

        @dataclass(frozen=True, slots=True)
        class Shared:
            words: list[str] = []  # noqa: RUF012
