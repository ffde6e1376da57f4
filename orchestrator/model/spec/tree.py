"""A tree of values that remember where they came from, and how it is built from the events of a YAML text.

Scalars have the meaning of YAML 1.2's core schema: ``true``, ``null``, ``4`` and ``1.5`` mean something, while ``off``,
``yes`` and ``2024-01-31`` are texts. A text is not trusted: depth and the number of nodes have limits, and no tag can
make anything else of it than the values below.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import field, replace
from typing import Any

from worker.records import dataclass

from ...errors import Problem, SpecError

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DIGITS = 1000
"""A longer whole number stays a text: Python refuses to convert it, and no setting has one."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place: ``orch.yaml:7``, ``--workers``, ``ORCH_WORKERS``.

    `text`: a scalar as it was written, for settings that want ``1e3`` or ``007`` untouched. The place of a
    mapping's value is the line of its key. Nodes may be shared within a tree; nothing ever changes one.
    """

    value: Scalar | dict[str, Node] | list[Node]
    place: str
    text: str = ""


# --- scalars ------------------------------------------------------------------------------------

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")


def scalar(text: str, place: str) -> Node:
    """An unquoted text as YAML 1.2's core schema reads it (YAML 1.2.2, section 10.3.2)."""
    return Node(_meaning(text), place, text)


def _meaning(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS:
        for form, base in ((_DECIMAL, 10), (_OCTAL, 8), (_HEX, 16)):
            if form.fullmatch(text):
                return int(text, base)
        if _FLOAT.fullmatch(text):
            return float(text)
    if _INFINITY.fullmatch(text) or _NAN.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text


# --- events -> tree -----------------------------------------------------------------------------


def refusal(place: str, message: str, hint: str = "") -> SpecError:
    """What is wrong at one place, as an exception to raise."""
    return SpecError(Problem(place, message, hint))


@dataclass(slots=True)
class _Open(ABC):
    """A mapping or list whose end has not been seen yet."""

    place: str
    anchor: str | None
    nodes_before: int
    height: int = 1

    @abstractmethod
    def take(self, node: Node, *, merge_key: bool) -> None:
        """The next node inside. `merge_key`: it is an unquoted ``<<``."""

    @abstractmethod
    def close(self) -> Node:
        """The whole, now that its end is seen."""


@dataclass(slots=True)
class _OpenList(_Open):
    items: list[Node] = field(default_factory=list)

    def take(self, node: Node, *, merge_key: bool) -> None:
        self.items.append(node)

    def close(self) -> Node:
        return Node(self.items, self.place)


@dataclass(slots=True)
class _OpenMapping(_Open):
    """Takes keys and values in turn. A plain ``<<`` is a merge: its mappings fill in what the mapping itself does not say."""

    entries: dict[str, Node] = field(default_factory=dict)
    merged: dict[str, Node] | None = None
    key: Node | None = None
    merging: bool = False

    def take(self, node: Node, *, merge_key: bool) -> None:
        if self.key is None:
            self._take_key(node, merge_key)
            return
        if self.merging:
            self._merge(node, self.key.place)
        else:
            self.entries[self.key.text] = replace(node, place=self.key.place)
        self.key = None

    def _take_key(self, key: Node, merge_key: bool) -> None:
        if isinstance(key.value, (dict, list)):
            raise refusal(key.place, "a key must be a text, not a mapping or a list")
        if merge_key and self.merged is not None:
            raise refusal(key.place, "'<<' is given twice in one mapping", "merge several with a list: <<: [*first, *second]")
        if not merge_key and (first := self.entries.get(key.text)):
            raise refusal(key.place, f"the key {key.text!r:.80} is given twice", f"first at {first.place}")
        self.key, self.merging = key, merge_key

    def _merge(self, node: Node, place: str) -> None:
        self.merged = {}
        for source in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(source.value, dict):
                raise refusal(place, "'<<' takes a mapping or a list of mappings")
            for key, item in source.value.items():
                self.merged.setdefault(key, item)

    def close(self) -> Node:
        return Node((self.merged or {}) | self.entries, self.place)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an alias stands for, and what it costs: `nodes` in all, in `height` levels of mappings and lists."""

    node: Node
    nodes: int
    height: int


class Builder:
    """Builds a tree from PyYAML's events, one level of Python's stack deep however deep the text is."""

    def __init__(self, source: str) -> None:
        self.root: Node | None = None
        self._source = source
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._nodes = 0

    def feed(self, event: Any, yaml: Any) -> None:
        place = f"{self._source}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise refusal(place, "a second document starts here", "one file describes one cluster")
        if isinstance(event, yaml.NodeEvent):
            self._refuse_tag(getattr(event, "tag", None), place)
        if isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, place)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, place)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(_OpenMapping if isinstance(event, yaml.MappingStartEvent) else _OpenList, event.anchor, place)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close()

    def _refuse_tag(self, tag: str | None, place: str) -> None:
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise refusal(place, f"the tag {shown!r:.80} is not allowed", "write the value without a tag, in quotes if it is a text")

    def _alias(self, name: str, place: str) -> None:
        if name not in self._anchors:
            raise refusal(place, f"the alias {name!r:.80} refers to nothing", "give a value above it this name with &")
        anchored = self._anchors[name]
        if anchored is None:
            raise refusal(place, f"the alias {name!r:.80} stands inside what it refers to")
        self._spend(anchored.nodes, place)
        self._check_depth(len(self._stack) + anchored.height, place)
        self._add(anchored.node, anchored.height)

    def _scalar(self, event: Any, place: str) -> None:
        self._spend(1, place)
        text = _joined(event.value)
        plain = event.implicit[0]
        node = scalar(text, place) if plain else Node(text, place, text)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(node, 1, 0)
        self._add(node, 0, merge_key=plain and text == "<<")

    def _open(self, kind: type[_Open], anchor: str | None, place: str) -> None:
        self._spend(1, place)
        self._check_depth(len(self._stack) + 1, place)
        if anchor is not None:
            self._anchors[anchor] = None
        self._stack.append(kind(place, anchor, self._nodes - 1))

    def _close(self) -> None:
        done = self._stack.pop()
        node = done.close()
        if done.anchor is not None:
            self._anchors[done.anchor] = _Anchored(node, self._nodes - done.nodes_before, done.height)
        self._add(node, done.height)

    def _add(self, node: Node, height: int, *, merge_key: bool = False) -> None:
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        parent.height = max(parent.height, height + 1)
        parent.take(node, merge_key=merge_key)

    def _spend(self, nodes: int, place: str) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise refusal(place, f"has more than {MAX_NODES:,} values, aliases written out")

    def _check_depth(self, depth: int, place: str) -> None:
        if depth > MAX_DEPTH:
            raise refusal(place, f"is nested more than {MAX_DEPTH} levels deep")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _joined(text: str) -> str:
    """Pairs of surrogates as the one character that JSON means by them; lone ones stay."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
