"""`dataclass`, for classes that are made more quickly.

Python compiles six methods for each frozen dataclass, one by one, and more than a hundred of them stand between ``orch up`` and its
first task, in the controller and again in the agent: half of their imports. Here only ``__init__`` is compiled, and all classes share the
other methods.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **how):
        """As `dataclasses.dataclass`, which makes all that are not frozen ones with slots."""
        if how != _OURS:
            return dataclasses.dataclass(cls, **how)
        return _make if cls is None else _make(cls)


_OURS = {"frozen": True, "slots": True}
_SHARED = frozenset(("__eq__", "__hash__", "__repr__"))


def _make(cls: type) -> type:
    if not _SHARED.isdisjoint(vars(cls)):
        raise TypeError(f"{cls.__name__} has its own way of {', '.join(sorted(_SHARED & vars(cls).keys()))}: take dataclasses.dataclass")
    made: Any = dataclasses.dataclass(cls, eq=False, repr=False, slots=True)
    if not all(one.compare and one.repr and one.hash is None for one in dataclasses.fields(made)):
        raise TypeError(f"{cls.__name__} compares or shows some of its fields only: take dataclasses.dataclass")
    made.__eq__, made.__hash__, made.__repr__ = _equals, _hash, _describe
    made.__setattr__, made.__delattr__ = _set_once, _refuse_to_delete
    return made  # type: ignore[no-any-return]


def _set_once(self: Any, name: str, value: object) -> None:
    """A field is set by ``__init__``, and not again."""
    if hasattr(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _values(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, name) for name in record.__dataclass_fields__])


def _equals(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _describe(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dataclass_fields__)})"
