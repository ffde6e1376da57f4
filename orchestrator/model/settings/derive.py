"""Derives from the declaration of a section: the check of a document, the value, and the way back to plain data.

A section is a frozen dataclass with fields made by `worker.settings.declare.setting`. Its class constants
SHORTHAND, MISPLACED and NAME are the fields of `Struct`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from worker.settings.declare import Setting, settings_of
from worker.values.fast_dataclass import dataclass

from ...errors import Problem
from .durations import EXAMPLES
from .findings import Findings, quoted, shown
from .kinds import ARGS, ENV, MAX_NUMBER, Duration, Flag, Integer, JsonSchema, Kind, Megabytes, Numbers, OneOf, Struct, Text, join, or_null
from .tree import Node

S = TypeVar("S")

_BY_TYPE: dict[Any, Kind] = {
    bool: Flag(),
    str: Text(),
    tuple[str, ...]: ARGS,
    tuple[int, ...]: Numbers(),
    tuple[int | None, ...]: Numbers(unknown=True),
    Mapping[str, str]: ENV,
}
_STRUCTS: dict[Any, Struct] = {}
MEGABYTES = "write MB, or a size with a unit: 4096 or 4G"


def struct_of(section: type) -> Struct:
    if section not in _STRUCTS:
        _STRUCTS[section] = _derive(section)
    return _STRUCTS[section]


def _derive(section: type) -> Struct:
    hints = get_type_hints(section)
    keys: dict[str, Setting] = {}
    for field, declared in settings_of(section):
        if declared.inline:
            keys |= struct_of(declared.inline).keys
        else:
            kind, default = _kind(declared, hints[field.name]), _default(field)
            example = declared.example or (_example(kind) if declared.words else default)
            keys[field.name] = dataclasses.replace(declared, kind=kind, example=example, words=declared.words or default)
    shorthand, name = (getattr(section, constant, "") for constant in ("SHORTHAND", "NAME"))
    return Struct(keys, shorthand, getattr(section, "MISPLACED", {}), name=name)


def _kind(declared: Setting, hint: Any) -> Kind:
    if declared.kind is not None:
        kind: Kind = declared.kind() if callable(declared.kind) else declared.kind
        return kind
    hint = next((part for part in get_args(hint) if part is not type(None)), hint) if type(None) in get_args(hint) else hint
    most = MAX_NUMBER if declared.most is None else declared.most
    if hint == tuple[int, ...] and declared.metavar == "MB,MB":
        return Numbers(number=Megabytes(1, MAX_NUMBER, MEGABYTES))
    if hint is int and declared.metavar == "MB":
        return Megabytes(int(declared.least or 0), int(most), MEGABYTES)
    if hint is int:
        return Integer(int(declared.least or 0), int(most), declared.hint)
    if hint is float:
        return Duration(declared.least, most, declared.hint or f"write seconds, or a time with units: {EXAMPLES}")
    if get_origin(hint) is Literal:
        return OneOf(get_args(hint), declared.hint)
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    return Named(get_args(hint)[0]) if get_origin(hint) is tuple else struct_of(hint)


def _default(field: dataclasses.Field[Any]) -> str:
    """The default of a field as a user writes it; empty if there is none, or if it is None or a section."""
    value = _default_of(field)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]" if value else "none"
    return "none" if value == {} else value if isinstance(value, str) else ""


def _example(kind: Kind) -> str:
    """A value of a simple type, as YAML; empty for another type."""
    if isinstance(kind, Integer):
        return f"{max(kind.minimum or 0, 1)}"
    return "true" if isinstance(kind, Flag) else kind.words[0] if isinstance(kind, OneOf) else ""


# --- checked data -> values -> plain data --------------------------------------------------------


def make(section: type[S], given: Mapping[str, Any], base: Any = None, **special: Any) -> S:
    """A section from checked data. Missing fields come from `base`, or are the defaults. `special`: fields with a given value."""
    found: dict[str, Any] = dict(special)
    for field, declared in settings_of(section):
        inside = given if declared.inline else given.get(field.name)
        if field.name in special or inside is None:
            continue
        before = field.default if base is None else getattr(base, field.name)
        is_section = dataclasses.is_dataclass(before) and isinstance(inside, Mapping)
        found[field.name] = make(type(before), inside, before) if is_section else inside
    return section(**found) if base is None else dataclasses.replace(base, **found)


def plain(value: Any, *, leave_out: tuple[str, ...] = (), whole: bool = False) -> dict[str, Any]:
    """The data from which `make` makes this value, without the fields in `leave_out`. `whole`: also fields with their default."""
    written: dict[str, Any] = {}
    keys = struct_of(type(value)).keys
    for field, declared in settings_of(type(value)):
        item = getattr(value, field.name)
        if field.name in leave_out or item is None or (item == _default_of(field) and not whole):
            continue
        if declared.inline:
            written |= plain(item)
        else:
            write = getattr(keys[field.name].kind, "write", _plain)
            written[field.name] = write(item)
    return written


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return plain(item)
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return dict(item) if isinstance(item, Mapping) else item


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


@dataclass(frozen=True, slots=True)
class Named(Kind):
    """A mapping from names, which the user chooses, to values of one section. The value is a tuple of them, each with its `name`."""

    section: type

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        if not isinstance(node.value, dict):
            findings.add(path, Problem(node.place, f"must be a mapping, not {shown(node)}", "write {NAME: ...}"))
            return None
        found = (self.check_one(name, item, path, findings) for name, item in node.value.items())
        return tuple(one for one in found if one is not None)

    def check_one(self, name: str, node: Node, path: str, findings: Findings) -> Any:
        """The section with this name; None if something is wrong with it."""
        before = len(findings.found)
        given = {} if node.value is None else struct_of(self.section).check(node, join(path, quoted(name)[1:-1]), findings)
        return None if len(findings.found) > before else make(self.section, given, name=name)

    def write(self, values: Sequence[Any]) -> dict[str, Any]:
        return {one.name: plain(one) for one in values}

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": or_null(struct_of(self.section).json_schema())}
