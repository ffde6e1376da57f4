"""Frozen dataclasses <-> plain JSON data, by their type hints. All data from outside is checked."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin


class ContractError(ValueError):
    """A value that does not fit the contract; the message names the field."""


class Between(NamedTuple):
    """The range of a number, its ends included: ``Annotated[int, Between(0, 255)]``."""

    low: float
    high: float

    def fits(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"from {self.low:,} to {self.high:,}"


class Without(NamedTuple):
    """Holds what a text must not hold: ``Annotated[str, Without("\\0")]``."""

    character: str

    def fits(self, value: Any) -> bool:
        return self.character not in value

    def __str__(self) -> str:
        return f"without {self.character!r}"


Count = Annotated[int, Between(0, 2**31 - 1)]
Positive = Annotated[int, Between(1, 2**31 - 1)]
Size = Annotated[int, Between(0, 2**63 - 1)]
"""Of a file, or a place in it, in bytes."""
Port = Annotated[int, Between(1, 65_535)]
ExitCode = Annotated[int, Between(0, 255)]
"""As in a shell: 128 + n for signal n. The kernel would make 0 of 256."""
Seconds = Annotated[float, Between(0, 1_000_000_000)]
Rate = Annotated[float, Between(0, 1e18)]
"""A share in percent, or a number per second."""
MOMENTS = Between(0, 100_000_000_000)
Moment = Annotated[float, MOMENTS]
"""Seconds since the epoch, up to the year 5138."""
OsText = Annotated[str, Without("\0")]
"""A text for the kernel: a path, an argument, the name or the value of a variable."""

T = TypeVar("T")
_PLAIN = {int: Between(-(2**63), 2**63 - 1), float: Between(-1e308, 1e308)}
"""The range of numbers without a range of their own. NaN is in no range."""
_DEEPEST = 50
"""How many lists and objects may lie in each other in a value of any shape."""
_WHOLE = re.compile("-?[0-9]{1,18}")


_UNCHANGED = frozenset((str, int, float, bool, type(None)))
_DEFAULTS: dict[type[Any], list[tuple[str, Any]]] = {}


def to_json(value: Any) -> Any:
    """A contract value as plain JSON data; fields at their default are left out."""
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if is_dataclass(kind):
        if kind not in _DEFAULTS:
            _DEFAULTS[kind] = [(spec.name, spec.default) for spec in fields(kind)]
        found = {}
        for name, default in _DEFAULTS[kind]:
            item = getattr(value, name)
            if item != default:
                found[name] = to_json(item)
        return found
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any) -> T:
    """The reverse of `to_json`. Raises `ContractError` for any other shape."""
    return typing.cast(T, _decode(cls, data, cls.__name__))


_PARTS: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
"""The origin and the arguments of each type hint that was met: `typing` takes its time to find them."""


def _decode(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return _check_depth(data, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_fields(kind, data, where)
    if kind is str and type(data) is str:
        return data
    if kind not in _PARTS:
        _PARTS[kind] = get_origin(kind), get_args(kind)
    origin, args = _PARTS[kind]
    if origin is Annotated:
        return _check(_decode(args[0], data, where), args[1], where)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _decode(next(arg for arg in args if arg is not type(None)), data, where)
    if origin is Literal:
        if data in args:
            return data
    elif origin is tuple:
        return _decode_tuple(args, data, where)
    elif origin is Mapping:
        if isinstance(data, dict):
            return {_decode_key(args[0], key, where): _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if data in [one.value for one in kind]:
            return kind(data)
    elif isinstance(data, (int, float) if kind is float else kind) and isinstance(data, bool) == (kind is bool):
        return kind(_check(data, _PLAIN[kind], where)) if kind in _PLAIN else data
    raise ContractError(f"{where}: expected {kind}, got {data!r:.80}")


def _check(value: Any, rule: Any, where: str) -> Any:
    if value is not None and not rule.fits(value):
        raise ContractError(f"{where}: expected a value {rule}, got {value!r:.80}")
    return value


def _check_depth(data: Any, where: str, left: int = _DEEPEST) -> Any:
    """A value of any shape, if a recursive function can go through it, and if a program can calculate with its numbers."""
    if type(data) is int:
        return _check(data, _PLAIN[float], where)  # JSON has numbers of any length, and `float` of a longer one fails
    if not left:
        raise ContractError(f"{where}: lists and objects lie deeper in each other than {_DEEPEST}")
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _check_depth(item, where, left - 1)
    return data


def _decode_key(kind: Any, key: Any, where: str) -> Any:
    """A mapping's key, which JSON has made a text."""
    if kind is int and isinstance(key, str) and _WHOLE.fullmatch(key):
        return int(key)
    return _decode(kind, key, where)


def _decode_fields(cls: type[Any], data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ContractError(f"{where}: expected an object, got {data!r:.80}")
    if hasattr(cls, "class_of"):  # the data decide which of several classes is meant
        cls = cls.class_of(data)
    hints = _hints(cls)
    unknown = data.keys() - hints.keys()
    if unknown:
        raise ContractError(f"{where}: unknown field {min(unknown)!r}")
    found = {key: _decode(hints[key], item, f"{where}.{key}") for key, item in data.items()}
    try:
        return cls(**found)
    except TypeError as error:
        raise ContractError(f"{where}: {error}") from None


def _decode_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ContractError(f"{where}: expected a list, got {data!r:.80}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(args) != len(data):
        raise ContractError(f"{where}: expected {len(args)} items, got {len(data)}")
    return tuple(_decode(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, data, strict=True)))


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls, include_extras=True)
    return _HINTS[cls]
