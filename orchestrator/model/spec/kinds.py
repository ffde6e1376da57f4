"""The types of settings. A type checks a node of a document, and describes itself as JSON Schema.

A check does not stop at the first mistake: it adds every mistake to the findings, with place and path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from worker.fast_dataclass import dataclass
from worker.settings.declare import Setting

from ...errors import Problem
from .findings import Findings, about, listed, nearest, quoted, shown
from .tree import Node, scalar

MAX_NUMBER = 1_000_000_000
"""The limit of a setting whose declaration has no `most`."""
MAX_NAME = 40
FIRST_PORT, LAST_PORT = 1024, 65535

JsonSchema = dict[str, Any]
Complaint = Callable[[str], str]
"""Returns what is wrong with a text (``must not be empty``), or an empty text."""


class Kind(Protocol):
    """A type of setting."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        """The value of a node for the spec; None after a mistake."""

    def json_schema(self) -> JsonSchema:
        """The JSON Schema for editors: never stricter than `check`."""


def is_scalar(node: Node) -> bool:
    return not isinstance(node.value, (dict, list))


# --- scalars ------------------------------------------------------------------------------------


def _bytes_complaint(text: str) -> str:
    if "\0" in text:
        return "must not hold a NUL character"
    if lone := re.search("[\ud800-\udc7f\udd00-\udfff]", text):
        return f"holds U+{ord(lone[0]):04X}, half a character"
    return ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text without NUL, and with a lone surrogate only for a byte that is not UTF-8.

    Any scalar is accepted and stays as written: ``1e3``, ``yes``.
    """

    complaint: Complaint = lambda text: "" if text else "must not be empty"

    def check(self, node: Node, path: str, findings: Findings) -> str | None:
        text = node.value if isinstance(node.value, str) else node.text
        if not is_scalar(node):
            findings.add(node, path, f"must be a text, not {shown(node)}")
        elif complaint := self.complaint(text) or _bytes_complaint(text):
            findings.add(node, path, complaint)
        else:
            return text
        return None

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean"]}


ANY_TEXT = Text(complaint=lambda text: "")


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `minimum` to `maximum`. A `minimum` of None: every number above 0."""

    WHOLE = False

    minimum: float | None
    maximum: float

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        value = node.value
        kinds = int if self.WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
            hint = "write it without quotes" if isinstance(value, str) and isinstance(scalar(value, "").value, kinds) else ""
            findings.add(node, path, f"must be a {'whole ' * self.WHOLE}number, not {shown(node)}", hint)
        elif value <= 0 if self.minimum is None else value < self.minimum:
            least = "more than 0" if self.minimum is None else f"at least {self.minimum:g}"
            findings.add(node, path, f"must be {least}, not {shown(node)}")
        elif value > self.maximum:
            findings.add(node, path, f"must be at most {self.maximum:,}, not {shown(node)}")
        else:
            return value if self.WHOLE else float(value)
        return None

    def json_schema(self) -> JsonSchema:
        least = {"exclusiveMinimum": 0} if self.minimum is None else {"minimum": self.minimum}
        return {"type": "integer" if self.WHOLE else "number", **least, "maximum": self.maximum}


class Integer(Number):
    """A whole number."""

    __slots__ = ()
    WHOLE = True


@dataclass(frozen=True, slots=True)
class Flag:
    """``true`` or ``false``."""

    def check(self, node: Node, path: str, findings: Findings) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}.get(node.text.lower(), "")
        findings.add(node, path, f"must be true or false, not {shown(node)}", f"write {meant}" if meant else "")
        return None

    def json_schema(self) -> JsonSchema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several words."""

    words: tuple[str, ...]
    label: str
    """The name of the words in a message: ``the strategies``."""

    def check(self, node: Node, path: str, findings: Findings) -> str | None:
        if isinstance(node.value, str) and node.value in self.words:
            return node.value
        message = f"{shown(node)} is not known" if is_scalar(node) else f"must be a word, not {shown(node)}"
        right = nearest(node.text, self.words)
        findings.add(node, path, message, f"did you mean '{right}'?" if right else f"{self.label}: {listed(self.words)}")
        return None

    def json_schema(self) -> JsonSchema:
        return {"enum": list(self.words)}


def _name_complaint(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", text):
        return "must be made of letters, digits, '.', '_' and '-' (A-Z, a-z, 0-9), and start with a letter or digit"
    return f"must have at most {MAX_NAME} characters" if len(text) > MAX_NAME else ""


def _workdir_complaint(text: str) -> str:
    if text.startswith("~"):
        return "starts with '~', which only a shell expands: write the path in full"
    return "" if text else "must not be empty"


NAME = Text(_name_complaint)
WORKDIR = Text(_workdir_complaint)


@dataclass(frozen=True, slots=True)
class PortRange:
    """``41000-41999``: the first and the last port."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[int, int] | None:
        ends = [scalar(end.strip(), node.place) for end in node.value.split("-")] if isinstance(node.value, str) else []
        if len(ends) != 2:
            findings.add(node, path, f"must be a first and a last port, not {shown(node)}", "write 41000-41999")
            return None
        port = Integer(FIRST_PORT, LAST_PORT)
        first, last = (port.check(end, path, findings) for end in ends)
        if first is None or last is None:
            return None
        if first > last:
            findings.add(node, path, f"the first port, {first}, is above the last, {last}")
            return None
        return first, last

    def write(self, ports: tuple[int, int]) -> str:
        return f"{ports[0]}-{ports[1]}"

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": "-"}


@dataclass(frozen=True, slots=True)
class Checked:
    """A type whose values have one rule more."""

    kind: Kind
    rule: Callable[[Any], Any]
    """Returns the value for the spec. Raises ValueError, which may have a `hint`."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        found = self.kind.check(node, path, findings)
        try:
            return None if found is None else self.rule(found)
        except ValueError as error:
            findings.add(node, path, str(error), getattr(error, "hint", ""))
            return None

    def json_schema(self) -> JsonSchema:
        return self.kind.json_schema()


# --- collections --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """A list whose items have one type."""

    item: Kind

    def check(self, node: Node, path: str, findings: Findings) -> tuple[Any, ...] | None:
        if not isinstance(node.value, list):
            hint = f"write {json.dumps(node.text.split())}" if is_scalar(node) and len(node.text) <= 200 else "write [a, b]"
            findings.add(node, path, f"must be a list, not {shown(node)}", hint)
            return None
        return tuple(self.item.check(item, f"{path}[{index}]", findings) for index, item in enumerate(node.value))

    def json_schema(self) -> JsonSchema:
        return {"type": "array", "items": or_null(self.item.json_schema())}


def parts_of(node: Node) -> list[Node]:
    """The items of a list, or of a text from a flag or a variable (``0,2``, ``0,``, ``[0]``); a number is one item."""
    if not isinstance(node.value, str):
        return node.value if isinstance(node.value, list) else [node]
    return [scalar(part.strip(), node.place) for part in node.text.strip("[] ").rstrip(",").split(",")]


def _is_unknown(node: Node) -> bool:
    return is_scalar(node) and (node.value is None or node.text == "?")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of whole numbers from 1 to `most`, also as ``1,2`` and ``1``."""

    example: str
    most: int = MAX_NUMBER
    unknown: bool = False
    """Null or ``?`` may replace a number."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[int | None, ...] | None:
        items = parts_of(node)
        if isinstance(node.value, dict) or not items:
            findings.add(node, path, f"must be a list of numbers, not {shown(node) if items else 'an empty list'}", f"write {self.example}")
            return None
        before, number = len(findings.found), Integer(1, self.most)
        found = [None if self.unknown and _is_unknown(item) else number.check(item, path, findings) for item in items]
        return tuple(found) if len(findings.found) == before else None

    def json_schema(self) -> JsonSchema:
        return {"type": ["array", "integer", "string"]}


@dataclass(frozen=True, slots=True)
class Mapping_:
    """A mapping whose keys the user chooses."""

    value: Kind
    complaint: Complaint
    """Checks a key."""

    def check(self, node: Node, path: str, findings: Findings) -> dict[str, Any] | None:
        if not isinstance(node.value, dict):
            findings.add(node, path, f"must be a mapping, not {shown(node)}", "write {NAME: value}")
            return None
        found = {}
        for key, item in node.value.items():
            if complaint := self.complaint(key) or _bytes_complaint(key):
                findings.add(item, path, f"the name {quoted(key)} {complaint}")
            found[key] = self.value.check(item, _joined(path, quoted(key)[1:-1]), findings)
        return found

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": or_null(self.value.json_schema())}


def _variable_complaint(name: str) -> str:
    if not name:
        return "is empty"
    if "=" in name:
        return "must not hold '='"
    if name == "TF_CONFIG" or name.startswith("ORCH_"):
        return "is set by orch itself, for each task"
    if len(json.dumps(name)) > 1000:
        return "is longer than 1,000 characters"  # YAML's limit for a key is 1,024, as written
    return ""


ARGS = Listing(ANY_TEXT)
ENV = Mapping_(ANY_TEXT, _variable_complaint)


def sentence(key: Setting) -> str:
    """What a key does; for a choice with its words."""
    words = key.kind.words if isinstance(key.kind, OneOf) else ()
    return key.about if all(word in key.about for word in words) else f"{key.about.rstrip('.')}: {listed(words, 'or')}."


@dataclass(frozen=True, slots=True)
class Struct:
    """A mapping with known keys. A null counts as a missing key."""

    keys: Mapping[str, Setting]
    """The declaration of each key, with its `Kind` and with its default in words."""
    shorthand: str = ""
    """A value that is no mapping is the value of this key: ``backend: ssh``."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Messages for wrong keys."""
    name: str = ""
    """The JSON Schema has one `definition` with this name, and references to it."""

    def check(self, node: Node, path: str, findings: Findings) -> dict[str, Any] | None:
        if self.shorthand and not isinstance(node.value, dict):
            value = self.keys[self.shorthand].kind.check(node, path, findings)
            return None if value is None else {self.shorthand: value}
        if not isinstance(node.value, dict):
            findings.add(node, path, f"must be a mapping, not {shown(node)}", f"its keys: {listed(self.keys)}")
            return None
        found = {}
        for key, item in node.value.items():
            if key not in self.keys:
                self._unknown(key, item, path, findings)
            elif item.value is not None:
                value = self.keys[key].kind.check(item, _joined(path, key), findings)
                if value is not None:
                    found[key] = value
        return found

    def _unknown(self, key: str, item: Node, path: str, findings: Findings) -> None:
        if key in self.misplaced:
            findings.note(Problem(item.place, about(path, self.misplaced[key])))
            return
        right = "" if findings.full else nearest(key, self.keys)
        hint = f"did you mean '{right}'?" if right else f"the keys here: {listed(self.keys)}"
        problem = Problem(item.place, about(path, f"unknown key {quoted(key)}"), hint)
        findings.note(problem, spoils=_joined(path, right) if right else None)

    def json_schema(self) -> JsonSchema:
        return {"$ref": f"#/$defs/{self.name}"} if self.name else self.definition()

    def definition(self) -> JsonSchema:
        """The JSON Schema without a reference."""
        mapping = {
            "type": "object",
            "properties": {name: _described(name, key) for name, key in self.keys.items()},
            "additionalProperties": False,
        }
        return {"anyOf": [self.keys[self.shorthand].kind.json_schema(), mapping]} if self.shorthand else mapping


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _described(name: str, key: Setting) -> JsonSchema:
    default = f" Default: {key.words}." if key.words else ""
    return {"title": name, "description": sentence(key) + default, **or_null(key.kind.json_schema())}


def or_null(schema: JsonSchema) -> JsonSchema:
    """A schema that also accepts null: ``env:`` without a value is a missing key."""
    return {"anyOf": [schema, {"type": "null"}]}
