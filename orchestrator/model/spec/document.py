"""Reads a YAML text into a tree of values with places, and overlays such trees.

PyYAML composes the tree. The text is not trusted: its depth and its number of values have limits, and tags are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from worker.fast_dataclass import dataclass

from ...errors import SpecError
from .describe import shorthand
from .tree import Node, refusal, scalar

__all__ = ["Node", "empty", "from_data", "overlay", "parse_assignment", "place_of", "read", "scalar"]

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 100_000


# --- reading ------------------------------------------------------------------------------------

_NOT_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that YAML does not allow, not even in quotes (YAML 1.2.2, section 5.1)."""

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def read(text: bytes | str, source: str) -> Node:
    """The tree of a YAML (or JSON) text whose top level is a mapping. `source`: the name of the text in places, such as ``orch.yaml``.

    Raises `SpecError` with the line and the reason.
    """
    content = _checked(text, source)
    root = _tree(content, source)
    if root is None or root.value is None:
        return Node({}, source)
    if not isinstance(root.value, dict):
        raise refusal(root.place, "the top level must be a mapping of keys to values", "for example: script: train.py")
    return replace(root, place=source)


def _checked(text: bytes | str, source: str) -> str:
    """The decoded text. Raises `SpecError` for a text that is too large or has characters that YAML does not allow."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise refusal(source, f"has {size:,} bytes; the limit is {MAX_BYTES:,}")
    text = _decoded(text, source) if isinstance(text, bytes) else text
    text = text.removeprefix("\ufeff")
    if found := _NOT_YAML.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise refusal(f"{source}:{line}", f"the character U+{ord(found[0]):04X} is not allowed in YAML")
    return text


def _decoded(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"the byte 0x{raw[error.start]:02x} is not UTF-8"
        raise refusal(f"{source}:{line}", message, "save the file as UTF-8") from None


def _tree(text: str, source: str) -> Node | None:
    """The tree of the only document in `text`; None if there is no document."""
    import yaml  # imported here: the import takes longer than `orch --help`

    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    if _SURROGATE_ESCAPE.search(text):
        loader = yaml.BaseLoader  # libyaml refuses surrogates, and JSON needs two for each character above U+FFFF
    try:
        _check_events(yaml.parse(text, Loader=loader), yaml, source)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.YAMLError as error:
        raise refusal(source, f"cannot be read as YAML: {error}") from None
    return None if root is None else _Reader(source).node(root, _place(source, root)).node


def _place(source: str, read: Any) -> str:
    """The first line of an event or a node of PyYAML."""
    return f"{source}:{read.start_mark.line + 1}"


def _check_events(events: Iterable[Any], yaml: Any, source: str) -> None:
    """Refuse a text that is too deep or too large for PyYAML, and mistakes that PyYAML's nodes do not show."""
    depth = nodes = documents = 0
    anchors: dict[str, str] = {}
    for event in events:
        place = _place(source, event)
        name, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        documents += isinstance(event, yaml.DocumentStartEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        _check_size(nodes, depth, place)
        if documents > 1:
            raise refusal(place, "a second document starts here", "one file describes one cluster")
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise refusal(place, f"the tag {shown!r:.80} is not allowed", "write the value without a tag, in quotes if it is a text")
        if isinstance(event, yaml.AliasEvent):
            if name not in anchors:
                raise refusal(place, f"the alias {name!r:.80} refers to nothing", "give a value above it this name with &")
        elif name is not None:
            if name in anchors:
                raise refusal(place, f"the anchor {name!r:.80} is given twice", f"first at {anchors[name]}")
            anchors[name] = place


def _check_size(nodes: int, depth: int, place: str) -> None:
    if nodes > MAX_NODES:
        raise refusal(place, f"has more than {MAX_NODES:,} values, aliases written out")
    if depth > MAX_DEPTH:
        raise refusal(place, f"is nested more than {MAX_DEPTH} levels deep")


@dataclass(frozen=True, slots=True)
class _Read:
    """A node, and its size with all aliases written out: `nodes` in `height` levels."""

    node: Node
    nodes: int = 1
    height: int = 0


class _Reader:
    """Makes the tree from PyYAML's nodes. Several aliases of one value share one node."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[int, _Read | None] = {}

    def node(self, composed: Any, place: str) -> _Read:
        """The tree of a node. `place`: the place of the use, which differs for an alias from the place of the value."""
        if id(composed) not in self._known:
            self._known[id(composed)] = None
            self._known[id(composed)] = self._read(composed)
        known = self._known[id(composed)]
        if known is None:
            raise refusal(place, "an alias stands inside what it refers to")
        return known

    def _read(self, composed: Any) -> _Read:
        place = _place(self._source, composed)
        if isinstance(composed.value, str):
            text = _joined(composed.value)
            return _Read(Node(text, place, text) if composed.style else scalar(text, place))
        if composed.id == "sequence":
            items = [self.node(item, _place(self._source, item)) for item in composed.value]
            return self._around(Node([item.node for item in items], place), items)
        return self._mapping(composed, place)

    def _around(self, node: Node, inside: list[_Read]) -> _Read:
        read = _Read(node, 1 + sum(item.nodes for item in inside), 1 + max((item.height for item in inside), default=0))
        _check_size(read.nodes, read.height, node.place)
        return read

    def _mapping(self, composed: Any, place: str) -> _Read:
        """A plain ``<<`` merges: the keys of its mappings are added if the mapping does not have them."""
        entries: dict[str, Node] = {}
        merged: dict[str, Node] | None = None
        inside: list[_Read] = []
        for name, item in composed.value:
            at = _place(self._source, name)
            if not isinstance(name.value, str):
                raise refusal(at, "a key must be a text, not a mapping or a list")
            key = _joined(name.value)
            value = self.node(item, at)
            inside += (_Read(Node(key, at)), value)
            if key == "<<" and not name.style:
                if merged is not None:
                    raise refusal(at, "'<<' is given twice in one mapping", "merge several with a list: <<: [*first, *second]")
                merged = _merged(value.node, at)
            elif key in entries:
                raise refusal(at, f"the key {key!r:.80} is given twice", f"first at {entries[key].place}")
            else:
                entries[key] = replace(value.node, place=at)
        return self._around(Node((merged or {}) | entries, place), inside)


def _merged(node: Node, place: str) -> dict[str, Node]:
    merged: dict[str, Node] = {}
    for source in node.value if isinstance(node.value, list) else [node]:
        if not isinstance(source.value, dict):
            raise refusal(place, "'<<' takes a mapping or a list of mappings")
        for key, item in source.value.items():
            merged.setdefault(key, item)
    return merged


_SURROGATE = re.compile("[\ud800-\udfff]")


def _joined(text: str) -> str:
    """The text with one character for each pair of surrogates, as in JSON. Lone surrogates stay."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _syntax_error(error: Any, text: str, source: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    where = f"column {mark.column + 1}" + (f", {error.context}" if error.context else "")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    hint = "indent with spaces, not with tabs" if "\t" in indent else ""
    return refusal(f"{source}:{mark.line + 1}", f"cannot be read as YAML: {error.problem} ({where})", hint)


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
    """Whether a document has a value at this path."""
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
    keys = path.split(".") if isinstance(path, str) else list(path)
    short = shorthand(keys)
    if short and value.value is not None and not isinstance(value.value, (dict, list)):
        keys.append(short)
    return _with(document, keys, 0, value)


def _with(node: Node, keys: list[str], depth: int, value: Node) -> Node:
    if depth == len(keys):
        return value
    known = node.value
    if not isinstance(known, dict):
        short = shorthand(keys[:depth])
        keep = short and known is not None and not isinstance(known, list)
        node = Node({short: node} if keep else {}, node.place or value.place)
        known = node.value
    assert isinstance(known, dict)
    child = known.get(keys[depth], Node(None, value.place))
    return Node({**known, keys[depth]: _with(child, keys, depth + 1, value)}, node.place)


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
        document = _tree(_checked(value, place), place)
    except SpecError as error:
        first = error.problems[0]
        raise refusal(place, f"{path!r:.80}: {first.message}", first.hint) from None
    return path, _moved(document or Node(None, place), place)


def _moved(node: Node, place: str) -> Node:
    """The tree with one place for all values: a flag has no lines."""
    if isinstance(node.value, dict):
        return Node({key: _moved(item, place) for key, item in node.value.items()}, place)
    if isinstance(node.value, list):
        return Node([_moved(item, place) for item in node.value], place)
    return replace(node, place=place)


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
