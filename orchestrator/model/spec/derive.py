"""Derives from the declaration of a section: the check of a document, the value, and the way back to plain data.

A section is a frozen dataclass with fields made by `worker.settings.declare.setting`. Its class constants SHORTHAND, MISPLACED, HINT
and NAME are the fields of `Struct`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from worker.settings.declare import Setting, settings_of

from .kinds import ARGS, ENV, MAX_NUMBER, Flag, Integer, Kind, Number, Numbers, OneOf, Struct, Text
from .sections.gpu_wish import Growth
from .sections.tpu_kinds import ComputationShape, Partitions, Topology

S = TypeVar("S")

NAMED: dict[str, Callable[[Setting], Kind]] = {
    "growth": lambda declared: Growth(),
    "sizes": lambda declared: Numbers("[1024, 1024] for two logical GPUs of 1 GB", int(_most(declared))),
    "topology": lambda declared: Topology(),
    "computation_shape": lambda declared: ComputationShape(),
    "partition": lambda declared: Partitions(),
}
"""The types that declarations in worker/ refer to by name."""
_BY_TYPE: dict[Any, Kind] = {bool: Flag(), str: Text(), tuple[str, ...]: ARGS, Mapping[str, str]: ENV}


_STRUCTS: dict[Any, Struct] = {}


def struct_of(section: type) -> Struct:
    """The type of a section's mapping."""
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
            default = _default(field)
            example = declared.example or ("" if declared.words else default)
            kind = _kind(declared, hints[field.name])
            keys[field.name] = dataclasses.replace(declared, kind=kind, example=example, words=declared.words or default)
    shorthand, hint, name = (getattr(section, constant, "") for constant in ("SHORTHAND", "HINT", "NAME"))
    return Struct(keys, shorthand, dict(getattr(section, "MISPLACED", ())), hint, name)


def _kind(declared: Setting, hint: Any) -> Kind:
    if declared.kind is not None:
        kind: Kind = NAMED[declared.kind](declared) if isinstance(declared.kind, str) else declared.kind
        return kind
    hint = next((part for part in get_args(hint) if part is not type(None)), hint) if type(None) in get_args(hint) else hint
    if hint is int:
        return Integer(int(declared.least or 0), int(_most(declared)))
    if hint is float:
        return Number(_most(declared), declared.least)
    if get_origin(hint) is Literal:
        return OneOf(get_args(hint), declared.label)
    return _BY_TYPE[hint] if hint in _BY_TYPE else struct_of(hint)


def _most(declared: Setting) -> float:
    return MAX_NUMBER if declared.most is None else declared.most


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


# --- checked data -> values -> plain data --------------------------------------------------------


def make(section: type[S], given: Mapping[str, Any], base: Any = None, **special: Any) -> S:
    """A section from checked data. Missing fields come from `base`, or are the defaults. `special`: fields with a given value."""
    found: dict[str, Any] = dict(special)
    for field, declared in settings_of(section):
        inside = given if declared.inline else given.get(field.name)
        if field.name in special or inside is None:
            continue
        before = field.default if base is None else getattr(base, field.name)
        is_section = _is_section(before) and isinstance(inside, Mapping)
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
    if _is_section(item):
        return plain(item)
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return dict(item) if isinstance(item, Mapping) else item


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _is_section(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and any(True for _ in settings_of(type(value)))
