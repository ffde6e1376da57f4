"""The types of settings. A type reads a node of a document, and describes itself as JSON Schema.

A list or a mapping does not stop at its first mistake: its type adds every mistake to the findings, with place and path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from worker.settings.declare import Setting
from worker.values.fast_dataclass import dataclass
from worker.values.words import few

from ...errors import Problem, SpecError
from .durations import bytes_of, seconds_of
from .findings import Findings, listed, nearest, quoted, shown
from .tree import Node, refusal, scalar

MAX_NUMBER = 1_000_000_000
"""The limit of a setting whose declaration has no `most`."""
MAX_NAME = 40
_AUTO = "write the number: nvidia-smi -L lists the GPUs here, and nproc counts the cores"
FIRST_PORT, LAST_PORT = 1024, 65535

JsonSchema = dict[str, Any]


class Kind:
    """A type of setting. A type implements `read`, or `check` if it can have several mistakes."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        """The value of a node for the spec. Raises `SpecError` with one problem."""
        raise NotImplementedError

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        """The value of the node at `path`; None after a mistake, which is added to the findings."""
        try:
            return self.read(node)
        except SpecError as error:
            findings.add(path, error.problems[0])
            return None

    def json_schema(self) -> JsonSchema:
        """The JSON Schema for editors: never stricter than the check."""
        return {}


def is_scalar(node: Node) -> bool:
    return not isinstance(node.value, (dict, list))


# --- scalars ------------------------------------------------------------------------------------


def _bytes_complaint(text: str) -> str:
    odd = re.search("[\0\ud800-\udc7f\udd00-\udfff]", text)
    return f"must not hold U+{ord(odd[0]):04X}" if odd else ""


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text that fits a pattern: any scalar, as it is written (``1e3``, ``yes``), without NUL and odd surrogates."""

    pattern: str = "(?s).+"
    complaint: str = "must not be empty"
    """The message about a text that does not fit."""

    def read(self, node: Node) -> Any:
        if not is_scalar(node):
            raise refusal(node.place, f"must be a text, not {shown(node)}")
        text = node.value if isinstance(node.value, str) else node.text
        if complaint := _bytes_complaint(text) or ("" if re.fullmatch(self.pattern, text) else self.complaint):
            raise refusal(node.place, complaint)
        return text

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean"]}


ANY_TEXT = Text("(?s).*")
NAME = Text(
    f"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}",
    f"must be made of at most {MAX_NAME} letters, digits, '.', '_' and '-' (A-Z, a-z, 0-9), and start with a letter or digit",
)
WORKDIR = Text("(?s)[^~].*", "must be a path that is written in full: only a shell expands '~'")


def _written(limit: float) -> str:
    """A limit as a user would write it."""
    return f"{int(limit) if limit == int(limit) else limit:,}"


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A finite number from `minimum` to `maximum`. A `minimum` of None: every number above 0."""

    WHOLE, WHAT, HAS_UNITS = False, "number", False

    minimum: float | None
    maximum: float
    hint: str = ""
    """What to write in place of a text or a list."""

    def read(self, node: Node) -> Any:
        value = self._value(node)
        kinds = int if self.WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
            hint = "write it without quotes" if isinstance(value, str) and isinstance(scalar(value, "").value, kinds) else self.hint
            raise refusal(node.place, f"must be a {self.WHAT}, not {shown(node)}", hint or (_AUTO if value == "auto" else ""))
        if value <= 0 if self.minimum is None else value < self.minimum:
            least = "more than 0" if self.minimum is None else f"at least {_written(self.minimum)}"
            raise refusal(node.place, f"must be {least}, not {shown(node)}")
        if value > self.maximum:
            raise refusal(node.place, f"must be at most {_written(self.maximum)}, not {shown(node)}")
        return value if self.WHOLE else float(value)

    def _value(self, node: Node) -> Any:
        found = self._parse(node.value) if self.HAS_UNITS and isinstance(node.value, str) else None
        return node.value if found is None else found

    def _parse(self, text: str) -> float | None:
        """The number of a text with a unit; None: it is none."""
        return None

    def json_schema(self) -> JsonSchema:
        least = {"exclusiveMinimum": 0} if self.minimum is None else {"minimum": self.minimum}
        schema: JsonSchema = {"type": "integer" if self.WHOLE else "number", **least, "maximum": self.maximum}
        return {"anyOf": [schema, {"type": "string"}]} if self.HAS_UNITS else schema


class Integer(Number):
    __slots__ = ()
    WHOLE, WHAT = True, "whole number"


class Duration(Number):
    """A span of time: a number of seconds, or a text with units."""

    __slots__ = ()
    WHAT, HAS_UNITS = "time", True

    def _parse(self, text: str) -> float | None:
        return seconds_of(text)


class Megabytes(Integer):
    """A size: a number of MB, or a text with a unit. TensorFlow's MB is 1024 KB, as a unit's."""

    __slots__ = ()
    WHAT, HAS_UNITS = "whole number of MB", True

    def _parse(self, text: str) -> int | None:
        found = bytes_of(text)
        return None if found is None else found >> 20


class Flag(Kind):
    """``true`` or ``false``."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if isinstance(node.value, bool):
            return node.value
        meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}.get(node.text.lower(), "")
        hint = "write one value, which counts for all" if isinstance(node.value, list) else f"write {meant}" if meant else ""
        raise refusal(node.place, f"must be true or false, not {shown(node)}", hint)

    def json_schema(self) -> JsonSchema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    words: tuple[str, ...]
    hint: str = ""
    """What to write in place of a word that is like none of them."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Words of other programs, each with the one that means the same."""

    def read(self, node: Node) -> Any:
        if isinstance(node.value, str) and node.value in self.words:
            return node.value
        right = self.same.get(node.text.lower()) or nearest(node.text, self.words)
        raise refusal(
            node.place,
            f"{shown(node)} is not known",
            f"did you mean '{right}'?" if right else self.hint or f"write {listed(self.words, 'or')}",
        )

    def json_schema(self) -> JsonSchema:
        return {"enum": list(self.words)}


class PortRange(Kind):
    """``41000-41999``: the first and the last port."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        ends = re.fullmatch("([0-9]{1,5}) *- *([0-9]{1,5})", node.text)
        if ends is None or not FIRST_PORT <= int(ends[1]) <= int(ends[2]) <= LAST_PORT:
            message = f"must be a first and a last port from {FIRST_PORT} to {LAST_PORT}, not {shown(node)}"
            raise refusal(node.place, message, "write 41000-41999")
        return int(ends[1]), int(ends[2])

    def write(self, ports: tuple[int, int]) -> str:
        return f"{ports[0]}-{ports[1]}"

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": "-"}


def parts_of(node: Node) -> list[Node]:
    """The items of a list, or of a text from a flag or a variable (``0,2``, ``0,``, ``[0]``); a number is one item."""
    if not isinstance(node.value, str):
        return node.value if isinstance(node.value, list) else [node]
    return [scalar(part.strip(), node.place) for part in node.text.strip("[] ").rstrip(",").split(",")]


def _is_unknown(node: Node) -> bool:
    return is_scalar(node) and (node.value is None or node.text == "?")


@dataclass(frozen=True, slots=True)
class Numbers(Kind):
    """A list of whole numbers above 0, also as ``1,2`` and ``1``."""

    unknown: bool = False
    """Null or ``?`` may replace a number."""
    number: Integer = Integer(1, MAX_NUMBER)

    def read(self, node: Node) -> Any:
        items = parts_of(node)
        if isinstance(node.value, dict) or not items:
            raise refusal(node.place, f"must be a list of numbers, not {shown(node) if items else 'an empty list'}", "write [1, 2]")
        return tuple(None if self.unknown and _is_unknown(item) else self.number.read(item) for item in items)

    def json_schema(self) -> JsonSchema:
        return {"type": ["array", "integer", "string"]}


# --- collections --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing(Kind):
    item: Kind

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        if not isinstance(node.value, list):
            hint = f"write {json.dumps(node.text.split())}" if is_scalar(node) and len(node.text) <= 200 else "write [a, b]"
            if isinstance(node.value, dict) and path == "args" and all(map(is_scalar, node.value.values())) and len(node.value) < 9:
                hint = f"write {json.dumps([word for name, item in node.value.items() for word in (f'--{name}', item.text)])}"
            findings.add(path, Problem(node.place, f"must be a list, not {shown(node)}", hint))
            return None
        return tuple(self.item.check(item, f"{path}[{index}]", findings) for index, item in enumerate(node.value))

    def json_schema(self) -> JsonSchema:
        return {"type": "array", "items": or_null(self.item.json_schema())}


@dataclass(frozen=True, slots=True)
class Mapping_(Kind):
    value: Kind
    complaint: Callable[[str], str]
    """Returns what is wrong with a key (``is empty``), or an empty text."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        if not isinstance(node.value, dict):
            findings.add(path, Problem(node.place, f"must be a mapping, not {shown(node)}", "write {NAME: value}"))
            return None
        for key, item in node.value.items():
            if complaint := self.complaint(key) or _bytes_complaint(key):
                findings.add(path, Problem(item.place, f"the name {quoted(key)} {complaint}"))
        return {key: self.value.check(item, join(path, quoted(key)[1:-1]), findings) for key, item in node.value.items()}

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": or_null(self.value.json_schema())}


def _variable_complaint(name: str) -> str:
    if name == "TF_CONFIG" or name.startswith("ORCH_"):
        return "is set by orch itself, for each task"
    if not name or "=" in name or len(json.dumps(name)) > 1000:  # YAML's limit for a key is 1,024, as written
        return "must have from 1 to 1,000 characters, and no '='"
    return ""


ARGS = Listing(ANY_TEXT)
ENV = Mapping_(ANY_TEXT, _variable_complaint)


def sentence(key: Setting) -> str:
    """Return what a key does; for a choice with its words."""
    words = key.kind.words if isinstance(key.kind, OneOf) else ()
    return key.about if all(word in key.about for word in words) else f"{key.about.rstrip('.')}: {listed(words, 'or')}."


_SAME_KEYS = {"type": ("kind", "name", "place", "engine", "scheduler"), "count": ("number", "replicas", "instances", "size", "n")}
"""Words of other programs for the key of a mapping that has a shorthand."""
_MOST_KEYS = 25


@dataclass(frozen=True, slots=True)
class Struct(Kind):
    """A mapping with known keys. A null counts as a missing key."""

    keys: Mapping[str, Setting]
    """The declaration of each key, with its `Kind` and with its default in words."""
    shorthand: str = ""
    """A value that is no mapping is the value of this key: ``backend: ssh``."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """What to do about certain wrong keys."""
    name: str = ""
    """The JSON Schema has one `definition` with this name, and references to it."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        flag = next((name for name, key in self.keys.items() if isinstance(key.kind, Flag)), "")
        if self.shorthand and flag and isinstance(node.value, bool) and isinstance(self.keys[self.shorthand].kind, Number):
            findings.add(path, Problem(node.place, f"must be a mapping, not {shown(node)}", f"write {{{flag}: {node.text}}}"))
            return None
        if self.shorthand and not isinstance(node.value, dict):
            value = self.keys[self.shorthand].kind.check(node, path, findings)
            return None if value is None else {self.shorthand: value}
        if not isinstance(node.value, dict):
            hint = f"write a mapping with some of these keys: {listed(self.keys)}"
            if "worker" in self.keys:
                hint = f"write {{worker: {node.text if isinstance(node.value, int) else 2}}}"
            findings.add(path, Problem(node.place, f"must be a mapping, not {shown(node)}", hint))
            return None
        found = {}
        for key, item in node.value.items():
            if key not in self.keys:
                self._unknown(key, item, node, path, findings)
            elif item.value is not None:
                value = self.keys[key].kind.check(item, join(path, key), findings)
                if value is not None:
                    found[key] = value
        return found

    def offered(self, node: Node) -> Mapping[str, Setting]:
        """The keys that a message about an unknown key of `node` names."""
        return self.keys

    def _unknown(self, key: str, item: Node, node: Node, path: str, findings: Findings) -> None:
        hint = self.misplaced.get(key) or self._parted(key) or self._place_of(key)
        if not hint:
            is_meant = key in _SAME_KEYS.get(self.shorthand, ())
            offered = self.offered(node)
            longer = [name for name in offered if len(key) > 2 and name.startswith(f"{key}_")]
            near = "" if findings.full else nearest(key, offered) or (longer[0] if len(longer) == 1 else nearest(key, self.keys))
            right = self.shorthand if is_meant else near
            here = listed(offered) if len(offered) <= _MOST_KEYS else f"{few([*offered], _MOST_KEYS)}; orch help reference names all"
            hint = f"did you mean '{right}'?" if right else f"write one of these keys: {here}"
            findings.spoiled.add(right)
        if item.place == "--set" and hint.startswith("write it as "):  # tasks: {worker: ...} is tasks.worker=...
            inner = "".join(f".{name}" for name in item.value if name not in hint) if isinstance(item.value, dict) else ""
            hint = "--set" + hint[11:].replace(": {", ".").replace(": ...", f"{inner}=...").replace("}", "")
        findings.add(path, Problem(item.place, f"unknown key {quoted(key)}", hint))

    def _parted(self, key: str) -> str:
        """Return how a key is written that stands there as ``--set`` has it, ``backend.type``; empty if it is none of these."""
        struct, names = self, key.split(".")
        for name in names[:-1]:
            inner = struct.keys[name].kind if name in struct.keys else None
            if not isinstance(inner, Struct):
                return ""
            struct = inner
        last = struct.shorthand if names[-1] in _SAME_KEYS.get(struct.shorthand, ()) else names[-1]
        inside = "".join(f"{{{name}: " for name in [*names[1:-1], last]) + "..." + "}" * (len(names) - 1)
        return f"write it as {names[0]}: {inside}" if len(names) > 1 and last in struct.keys else ""

    def _place_of(self, word: str) -> str:
        """Return where a key of a mapping inside this one belongs, or the name of its option; empty if no mapping has the key."""
        if not word:
            return ""
        places = [
            f"{outer}: {inner}"
            for outer, section in self.keys.items()
            if isinstance(section.kind, Struct)
            for inner in section.kind._written(word, 2 if outer == "defaults" else 1)
        ]
        places.sort(key=lambda place: not place.startswith("backend"))  # of several the more usual one first
        return f"write it as {' or '.join(places)}" if places else ""

    def _written(self, word: str, depth: int) -> Iterator[str]:
        """The mappings in which this key, or the key of this option, is written."""
        for name, key in self.keys.items():
            if word in (name, key.flag.rpartition("--")[2].replace("-", "_")):
                yield f"{{{name}: ...}}"
            elif depth > 1 and isinstance(key.kind, Struct):
                yield from (f"{{{name}: {inner}}}" for inner in key.kind._written(word, depth - 1))

    def json_schema(self) -> JsonSchema:
        return {"$ref": f"#/$defs/{self.name}"} if self.name else self.definition()

    def definition(self) -> JsonSchema:
        mapping = {
            "type": "object",
            "properties": {name: _described(name, key) for name, key in self.keys.items()},
            "additionalProperties": False,
        }
        return {"anyOf": [self.keys[self.shorthand].kind.json_schema(), mapping]} if self.shorthand else mapping


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _described(name: str, key: Setting) -> JsonSchema:
    default = f" Default: {key.words}." if key.words else ""
    return {"title": name, "description": sentence(key) + default, **or_null(key.kind.json_schema())}


def or_null(schema: JsonSchema) -> JsonSchema:
    """A schema that also accepts null: ``env:`` without a value is a missing key."""
    return {"anyOf": [schema, {"type": "null"}]}
