"""A tree of values with their places.

Scalars follow YAML 1.2's core schema: ``true``, ``null``, ``4`` and ``1.5`` have a meaning; ``off``, ``yes`` and ``2024-01-31`` are texts.
So are ``0o17``, ``0x1F``, ``.inf`` and ``.nan``, which are numbers in YAML: a setting that takes a number refuses such a text.
"""

from __future__ import annotations

import re

from worker.values.fast_dataclass import dataclass

from ...errors import Problem, SpecError

MAX_DIGITS = 1000
"""A longer whole number stays a text: Python refuses to convert it, and no setting needs it."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place. A tree may contain a node several times; a node never changes."""

    value: Scalar | dict[str, Node] | list[Node]
    place: str
    """``orch.yaml:7``, ``--workers``, ``ORCH_WORKERS``. The place of a value in a mapping is the line of its key."""
    text: str = ""
    """A scalar as written, for settings that need ``1e3`` or ``007`` unchanged."""


# --- scalars ------------------------------------------------------------------------------------

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def scalar(text: str, place: str) -> Node:
    """An unquoted text, mostly as YAML 1.2's core schema reads it (YAML 1.2.2, section 10.3.2)."""
    return Node(_meaning(text), place, text)


def _meaning(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def refusal(place: str, message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(place, message, hint))
