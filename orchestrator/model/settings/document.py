"""Reads a text in JSON or YAML into a tree of values with places, and overlays such trees.

PyYAML parses YAML. The text is not trusted: its length and its depth have limits, and tags and aliases are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from ...errors import SpecError
from .derive import Named, struct_of
from .describe import root
from .kinds import Kind, Mapping_, Struct
from .tree import Node, refusal, scalar

__all__ = ["Node", "empty", "from_data", "has", "overlay", "parse_assignment", "place_of", "read", "scalar"]

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"


# --- reading ------------------------------------------------------------------------------------

_NOT_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that YAML does not allow, not even in quotes (YAML 1.2.2, section 5.1)."""


def read(text: bytes | str, source: str) -> Node:
    """The tree of a JSON or YAML text with a mapping at its top. `source`: its name in places. Raises `SpecError` with the line."""
    text = _decoded(text, source) if isinstance(text, bytes) else text
    try:
        tree: Node | None = from_data(json.loads(text), source)
    except (ValueError, RecursionError):
        tree = _tree(text, source)
    if tree is None or tree.value is None:
        return Node({}, source)
    if not isinstance(tree.value, dict):
        raise refusal(tree.place, "the top level must be a mapping of keys to values", "for example: script: train.py")
    return replace(tree, place=source)


def _decoded(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"the byte 0x{raw[error.start]:02x} is not UTF-8"
        raise refusal(f"{source}:{line}", message, "save the file as UTF-8") from None


def _tree(text: str, source: str, *, lines: bool = True) -> Node | None:
    """The tree of the only document in `text`; None if there is no document. Without `lines`, `source` is the place of all values."""
    import yaml  # imported here: the import takes longer than `orch --help`

    text = text.removeprefix("\ufeff")
    if found := _NOT_YAML.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise refusal(f"{source}:{line}", f"the character U+{ord(found[0]):04X} is not allowed in YAML")
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return _Reader(yaml.parse(text, Loader=loader), source, lines=lines).document()
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        if "nesting depth" in str(error.problem):  # libyaml's own limit, since 0.2.6, may come before ours: it reads ahead
            raise refusal(f"{source}:{mark.line + 1}" if lines else source, _TOO_DEEP) from None
        at_mark = "".join(text.split("\n")[mark.line : mark.line + 1])[mark.column :]
        if "tab character that violates" in str(error.problem) or ("cannot start any token" in str(error.problem) and at_mark[:1] == "\t"):
            raise refusal(f"{source}:{mark.line + 1}", "a tab stands before the text", "indent with spaces") from None
        where = f"column {mark.column + 1}" + (f", {error.context}" if error.context else "")
        raise refusal(f"{source}:{mark.line + 1}", f"cannot be read as YAML: {error.problem} ({where})") from None
    except yaml.YAMLError as error:
        raise refusal(source, f"cannot be read as YAML: {error}") from None


class _Reader:
    """Makes the tree from PyYAML's events. PyYAML's own composer has no limit of depth: a deep text ends the process."""

    def __init__(self, events: Iterable[Any], source: str, *, lines: bool) -> None:
        self._events = iter(events)
        self._source = source
        self._lines = lines

    def document(self) -> Node | None:
        tree = None
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                if tree is not None:
                    raise refusal(self._place(event), "a second document starts here", "one file describes one cluster")
                tree = self._node(next(self._events))
        return tree

    def _place(self, event: Any) -> str:
        return f"{self._source}:{event.start_mark.line + 1}" if self._lines else self._source

    def _node(self, event: Any, depth: int = 1, at: str = "") -> Node:
        """The node that begins with this event. `at`: its place, if that is not the place of the event."""
        place = at or self._place(event)
        if depth > MAX_DEPTH:
            raise refusal(place, _TOO_DEEP)
        kind = type(event).__name__
        if event.anchor is not None:
            raise refusal(place, f"the anchor or alias {event.anchor!r:.80} is not allowed", "write the value in each place")
        if event.tag is not None:
            shown = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise refusal(place, f"the tag {shown!r:.80} is not allowed", "write the value without a tag, in quotes if it is a text")
        if kind == "ScalarEvent":
            return Node(event.value, place, event.value) if event.style else scalar(event.value, place)
        if kind == "SequenceStartEvent":
            return Node([self._node(item, depth + 1) for item in self._inside()], place)
        return self._mapping(place, depth + 1)

    def _inside(self) -> Iterator[Any]:
        """The events inside the list or mapping that has just begun. The event of its end is consumed too."""
        return takewhile(lambda event: not type(event).__name__.endswith("EndEvent"), self._events)

    def _mapping(self, place: str, depth: int) -> Node:
        entries: dict[str, Node] = {}
        for name in self._inside():
            at = self._place(name)
            if type(name).__name__ != "ScalarEvent":
                raise refusal(at, "a key must be a text, not a mapping, a list or an alias")
            key = self._node(name, depth).text
            if key in entries:
                raise refusal(at, f"the key {key!r:.80} is given twice", f"keep one of the two; the first is at {entries[key].place}")
            entries[key] = self._node(next(self._events), depth, at)
        return Node(entries, place)


# --- lookup and overlay -------------------------------------------------------------------------


def empty() -> Node:
    """A document without keys."""
    return Node({}, "")


def place_of(document: Node, path: str) -> str:
    """The place of the value at `path` (``tasks.ps.count``), or of the deepest value on the way."""
    place = document.place
    for node in _walk(document, path.split(".")):
        place = node.place
    return place


def has(document: Node, keys: Sequence[str]) -> bool:
    """True if a document has a value at this path."""
    return len(list(_walk(document, keys))) == len(keys)


def _walk(node: Node, keys: Sequence[str]) -> Iterator[Node]:
    for key in keys:
        if not isinstance(node.value, dict) or key not in node.value:
            return
        node = node.value[key]
        yield node


def overlay(document: Node, path: str | Sequence[str], value: Node) -> Node:
    """A copy of `document` with `value` at `path`.

    `path` is ``tasks.worker.count``, or a list of keys if a key contains a dot. Missing mappings are added. A shorthand (``worker: 4``)
    becomes a mapping; a shorthand over a mapping changes one key of the mapping. A null means a missing key.
    """
    return _with(document, root(), path.split(".") if isinstance(path, str) else path, value)


def _with(node: Node, kind: Kind | None, keys: Sequence[str], value: Node) -> Node:
    """`overlay` for a node whose type is `kind`; None: unknown."""
    short = kind.shorthand if isinstance(kind, Struct) else ""
    if not keys:
        if not short or value.value is None or isinstance(value.value, dict):
            return value
        keys = (short,)
    known = node.value
    if not isinstance(known, dict):
        known = {short: node} if short and known is not None else {}
    child = known.get(keys[0], Node(None, value.place))
    return Node({**known, keys[0]: _with(child, _inside(kind, keys[0]), keys[1:], value)}, node.place)


def _inside(kind: Kind | None, key: str) -> Kind | None:
    if isinstance(kind, Struct):
        return kind.keys[key].kind if key in kind.keys else None
    if isinstance(kind, Mapping_):
        return kind.value
    return struct_of(kind.section) if isinstance(kind, Named) else None


def parse_assignment(text: str, place: str) -> tuple[str, Node]:
    """Path and value of ``tasks.worker.count=4``.

    The value is a list or a mapping (``[a, b]``, ``{a: 1}``), a text in quotes, or else everything after the first ``=``, without blanks
    around it. Raises `SpecError`.
    """
    path, equals, value = text.partition("=")
    if not equals:
        raise refusal(place, f"{text!r:.80} has no '='", "write key.path=value, such as tasks.worker.count=4")
    keys = path.split(".")
    if not all(keys) or len(keys) >= MAX_DEPTH:
        raise refusal(place, f"{path!r:.80} is not the path of a key", "write key.path=value, such as tasks.worker.count=4")
    if value.lstrip()[:1] not in tuple("[{\"'"):
        return path, scalar(value.strip(), place)
    try:
        document = _tree(value, place, lines=False)
    except SpecError as error:
        first = error.problems[0]
        raise refusal(place, f"{path!r:.80}: {first.message}", first.hint) from None
    return path, document or Node(None, place)


# --- plain data ---------------------------------------------------------------------------------


def from_data(data: Any, place: str, depth: int = 0) -> Node:
    """Plain data of Python or JSON as a document with one place. A text stays a text. Raises `SpecError`."""
    if depth > MAX_DEPTH:
        raise refusal(place, f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(data, Mapping):
        return Node({str(key): from_data(item, place, depth + 1) for key, item in data.items()}, place)
    if isinstance(data, (list, tuple)):
        return Node([from_data(item, place, depth + 1) for item in data], place)
    if isinstance(data, (str, PurePath)):
        return Node(str(data), place, str(data))
    if data is None or isinstance(data, (bool, int, float)):
        return Node(data, place, json.dumps(data))
    raise refusal(place, f"holds a value of type {type(data).__name__}", "give texts, numbers, lists and mappings")
