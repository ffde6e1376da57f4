"""Text -> a tree of values with places; and changes laid over such a tree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ...errors import SpecError
from .keys import shorthand
from .tree import MAX_DEPTH, Builder, Node, refusal, scalar

__all__ = ["Node", "empty", "from_data", "overlay", "parse_assignment", "place_of", "read", "scalar"]

MAX_BYTES = 1024 * 1024


# --- reading ------------------------------------------------------------------------------------

_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What YAML allows nowhere, not even between quotes (YAML 1.2.2, section 5.1)."""

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def read(text: bytes | str, source: str) -> Node:
    """Reads a YAML (or JSON) text whose top level is a mapping. `source` names it in places: ``orch.yaml``.

    Raises `SpecError` with the line and the reason for everything that is not such a text.
    """
    content = _checked(text, source)
    root = _tree(content, source)
    if root is None or root.value is None:
        return Node({}, source)
    if not isinstance(root.value, dict):
        raise refusal(root.place, "the top level must be a mapping of keys to values", "for example: script: train.py")
    return replace(root, place=source)


def _checked(text: bytes | str, source: str) -> str:
    """The text itself, if it is small enough and holds only characters that YAML allows."""
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
    import yaml  # here, because reading YAML takes longer to import than `orch --help` to run

    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    if _SURROGATE_ESCAPE.search(text):
        loader = yaml.BaseLoader  # libyaml refuses these, and JSON writes every character beyond U+FFFF with two of them
    builder = Builder(source)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.feed(event, yaml)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.YAMLError as error:
        raise refusal(source, f"cannot be read as YAML: {error}") from None
    return builder.root


def _syntax_error(error: Any, text: str, source: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    where = f"column {mark.column + 1}" + (f", {error.context}" if error.context else "")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    hint = "indent with spaces, not with tabs" if "\t" in indent else ""
    return refusal(f"{source}:{mark.line + 1}", f"cannot be read as YAML: {error.problem} ({where})", hint)


# --- looking up and laying over -----------------------------------------------------------------


def empty() -> Node:
    """A document that says nothing."""
    return Node({}, "")


def place_of(document: Node, path: str) -> str:
    """The place of what `path` (``tasks.ps.count``) names, or of the deepest mapping or value on the way to it."""
    place = document.place
    for node in _walk(document, path.split(".")):
        place = node.place
    return place


def _walk(node: Node, keys: Sequence[str]) -> Iterator[Node]:
    for key in keys:
        if not isinstance(node.value, dict) or key not in node.value:
            return
        node = node.value[key]
        yield node


def overlay(document: Node, path: str | Sequence[str], value: Node) -> Node:
    """A new document that says `value` at `path`, and otherwise what `document` says.

    `path` is ``tasks.worker.count``, or its keys one by one where a key has a dot in it. Missing mappings are made, a shorthand
    (``worker: 4``) becomes the mapping that it stands for, and a shorthand laid over a mapping changes only what it stands for.
    A null laid over a key means what a missing key means.
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
    """``tasks.worker.count=4`` -> its path and its value.

    The value is a list or mapping if it starts as one (``[a, b]``, ``{a: 1}``), a text if it is in quotes, and otherwise
    everything behind the first ``=``, as it stands, without blanks around it. Raises `SpecError`.
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
    """The same tree, all of it at one place: a flag has no lines worth naming."""
    if isinstance(node.value, dict):
        return Node({key: _moved(item, place) for key, item in node.value.items()}, place)
    if isinstance(node.value, list):
        return Node([_moved(item, place) for item in node.value], place)
    return replace(node, place=place)


# --- plain data ---------------------------------------------------------------------------------


def from_data(data: Any, place: str, depth: int = 0) -> Node:
    """Plain data of Python or JSON as a document, all of it at one place. A text stays a text. Raises `SpecError`."""
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
    raise refusal(place, f"holds a {type(data).__name__}", "give texts, numbers, lists and mappings")
