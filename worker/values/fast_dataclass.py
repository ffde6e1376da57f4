"""A `dataclass` for frozen classes that compiles no code, so that a process starts faster.

For each frozen dataclass, the standard library writes six methods as text and compiles them, which takes a millisecond. The controller and
the agent have more than a hundred such classes. The classes of this module share their methods instead; the standard library still makes
their fields and slots. `dataclasses.fields`, `replace`, `asdict` and `is_dataclass` work with them. All fields are compared and shown, and
there is no `__post_init__`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **how):
        """As `dataclasses.dataclass`, which this function calls for all classes but frozen classes with slots."""
        if how != {"frozen": True, "slots": True}:
            return dataclasses.dataclass(cls, **how)
        return _make if cls is None else _make(cls)


def _make(cls: type) -> type:
    made: Any = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=True)
    for name in _SHARED.keys() - vars(cls).keys():
        setattr(made, name, _SHARED[name])
    made.__init__ = _initialiser(made)
    return made  # type: ignore[no-any-return]


def _initialiser(made: type) -> Callable[..., None]:
    """``__init__``, which calls the slots themselves. ``__setattr__`` refuses to set a field."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(made)
    places = [(one.name, getattr(made, one.name).__set__, one.default, one.default_factory) for one in fields]
    names = [one.name for one in fields]
    known = frozenset(names)
    needed = frozenset(one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(names, args), **kwargs)  # noqa: B905 - too few are the usual case
        if len(given) < len(args) + len(kwargs) or not needed <= given.keys() <= known:
            raise TypeError(f"{made.__name__}() takes {', '.join(names)}, and got {len(args)} values and {list(kwargs)}")
        for name, put, default, factory in places:
            put(self, given[name] if name in given else default if factory is dataclasses.MISSING else factory())

    return __init__


def _values(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, name) for name in record.__match_args__])


def _equals(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _describe(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), _values(self)


def _refuse(self: Any, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


_SHARED = {
    "__eq__": _equals,
    "__hash__": _hash,
    "__repr__": _describe,
    "__reduce__": _reduce,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
