"""A `dataclass` for frozen classes that compiles no code, so that a process starts faster.

For each frozen dataclass, the standard library writes six methods as text and compiles them. The controller and the agent have more than a
hundred such classes. The classes of this module share their methods instead. `dataclasses.fields`, `replace`, `asdict` and `is_dataclass`
work with them.
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
    members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    own = sorted(members.keys() & {*_SHARED, "__init__", "__post_init__"})
    if own:
        raise TypeError(f"{cls.__name__} has its own way of {', '.join(own)}: use dataclasses.dataclass")
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        inherited.update(getattr(base, "__dataclass_fields__", {}))
    hints: dict[str, Any] = members.get("__annotations__", {})
    fields = {**inherited, **{name: _field(name, hint, members.pop(name, dataclasses.MISSING)) for name, hint in hints.items()}}
    if not all(one.compare and one.repr and one.init and one.hash is None for one in fields.values()):
        raise TypeError(f"{cls.__name__} takes, compares or shows some of its fields only: use dataclasses.dataclass")
    slots = tuple(name for name in hints if name not in inherited)
    described = {"__slots__": slots, "__match_args__": tuple(fields), "__dataclass_fields__": fields, "__dataclass_params__": _PARAMS}
    made: Any = type(cls)(cls.__name__, cls.__bases__, {**members, **described, **_SHARED})
    made.__qualname__ = cls.__qualname__
    made.__init__ = _initialiser(made, list(fields.values()))
    return made  # type: ignore[no-any-return]


def _field(name: str, hint: Any, default: Any) -> Any:
    """The `dataclasses.Field` of a field. `default`: a value, or the result of `dataclasses.field`."""
    if str(hint).partition("[")[0].rpartition(".")[2] in ("ClassVar", "InitVar", "KW_ONLY"):
        raise TypeError(f"{name} is no plain field: use dataclasses.dataclass")
    if isinstance(default, (list, dict, set)):
        raise ValueError(f"mutable default {type(default)} for field {name}: use default_factory")
    found: Any = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
    found.name, found.type, found.kw_only, found._field_type = name, hint, False, _PLAIN
    return found


def _initialiser(made: type, fields: list[Any]) -> Callable[..., None]:
    """``__init__``, which calls the slots themselves. ``__setattr__`` refuses to set a field."""
    places = [(one.name, getattr(made, one.name).__set__, one.default, one.default_factory) for one in fields]
    setters = [place[1] for place in places]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = len(args)
        for put, value in zip(setters, args):  # noqa: B905 - too few are the usual case, too many are refused below
            put(self, value)
        known = 0
        for name, put, default, factory in places[given:]:
            if name in kwargs:
                known += 1
                put(self, kwargs[name])
            elif default is not dataclasses.MISSING:
                put(self, default)
            elif factory is not dataclasses.MISSING:
                put(self, factory())
            else:
                raise TypeError(f"{made.__name__}() missing the argument {name!r}")
        if known < len(kwargs) or given > len(setters):
            names = [place[0] for place in places[given:]]
            wrong = next((f"an unexpected keyword argument {name!r}" for name in kwargs if name not in names), f"{given} arguments")
            raise TypeError(f"{made.__name__}() got {wrong}; it takes {', '.join(place[0] for place in places)}")

    return __init__


def _values(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, name) for name in record.__dataclass_fields__])


def _equals(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _describe(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dataclass_fields__)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), _values(self)


def _refuse_to_set(self: Any, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {
    "__eq__": _equals,
    "__hash__": _hash,
    "__repr__": _describe,
    "__reduce__": _reduce,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
}


@dataclasses.dataclass(frozen=True)
class _Example:
    field: int


_PARAMS = _Example.__dataclass_params__  # type: ignore[attr-defined]
_PLAIN = dataclasses.fields(_Example)[0]._field_type  # type: ignore[attr-defined]
