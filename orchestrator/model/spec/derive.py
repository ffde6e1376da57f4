"""Derives from the declaration of a section: the check of a document, the value, and the way back to plain data.

A section is a frozen dataclass with fields made by `worker.settings.declare.setting`. Its class constants
SHORTHAND and NAME are the fields of `Struct`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from worker.fast_dataclass import dataclass
from worker.settings.declare import Setting, settings_of
from worker.settings.tpu_settings import Partition
from worker.tensorflow_facts.partition import ITEM_BYTES

from .. import tpu_topology
from .findings import Findings, quoted, shown
from .kinds import ARGS, ENV, MAX_NUMBER, Checked, Flag, Integer, JsonSchema, Kind, Number, Numbers, OneOf, Struct, Text, or_null
from .sections.gpu_wish import Growth
from .tree import Node

S = TypeVar("S")

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
    shorthand, name = (getattr(section, constant, "") for constant in ("SHORTHAND", "NAME"))
    return Struct(keys, shorthand, name=name)


def _kind(declared: Setting, hint: Any) -> Kind:
    if declared.kind is not None:
        named = NAMED[declared.kind] if isinstance(declared.kind, str) else declared.kind
        kind: Kind = named() if callable(named) else named
        return kind
    hint = next((part for part in get_args(hint) if part is not type(None)), hint) if type(None) in get_args(hint) else hint
    if hint is int:
        return Integer(int(declared.least or 0), int(_most(declared)))
    if hint is float:
        return Number(declared.least, _most(declared))
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


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping from names, which the user chooses, to values of one section. The value is a tuple of them, each with its `name`."""

    section: type

    def check(self, node: Node, path: str, findings: Findings) -> tuple[Any, ...] | None:
        if not isinstance(node.value, dict):
            findings.add(node, path, f"must be a mapping, not {shown(node)}", "write {NAME: ...}")
            return None
        found = (self.check_one(name, item, path, findings) for name, item in node.value.items())
        return tuple(one for one in found if one is not None)

    def check_one(self, name: str, node: Node, path: str, findings: Findings) -> Any:
        """The section with this name; None if something is wrong with it."""
        before, own = len(findings.found), f"{path}.{quoted(name)[1:-1]}"
        given = {} if node.value is None else struct_of(self.section).check(node, own, findings)
        if len(findings.found) > before or given is None:
            return None
        for field, _ in settings_of(self.section):
            if field.name not in given and _default_of(field) is dataclasses.MISSING:
                findings.add(node, own, f"has no {field.name}")
                return None
        return make(self.section, given, name=name)

    def write(self, values: Sequence[Any]) -> dict[str, Any]:
        return {one.name: plain(one) for one in values}

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": or_null(struct_of(self.section).json_schema())}


NAMED: Mapping[str, Kind] = {
    "growth": Growth(),
    "sizes": Numbers("[1024, 1024] for two logical GPUs of 1 GB", 100_000_000),
    "topology": Checked(Text(), lambda text: tpu_topology.parse(text).name),
    "computation_shape": Checked(Numbers("[1, 1, 1, 2]"), tpu_topology.computation_shape),
    "partition": Named(Partition),
    "parts": Numbers("[1, 2, 4, 1]"),
    "shape": Numbers("[128, 224, 224, 3]", unknown=True),
    "dtype": OneOf(tuple(ITEM_BYTES), "the types"),
}
"""The types that declarations in worker/ refer to by name."""
