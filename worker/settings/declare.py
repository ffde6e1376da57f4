"""Describes how a setting is declared: a section is a frozen dataclass, and each of its fields carries everything about one setting.

    @dataclass(frozen=True, slots=True)
    class CollectiveSettings:
        timeout_s: float | None = setting(None, "The longest that one operation waits.", example="30", words="no limit")

The declarations are plain data, so a task imports them quickly. orchestrator/model/settings derives from them the code that checks,
describes and writes a field. docs/adding.md shows how a setting is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..values.fast_dataclass import dataclass

KEY = "setting"
"""The key of a field's metadata that holds its `Setting`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything about a field beyond its name, its type and its default."""

    about: str
    example: str = ""
    """A value as YAML, on one line, for the file that ``orch init`` writes; empty: the default, or a value of the type."""
    words: str = ""
    """The value without the setting, in words; empty: the field's default."""
    flag: str = ""
    """Its option on the command line: ``--ps``, or ``-n --workers``. The option's variable follows from it: ORCH_WORKERS. An option for
    true and false has a second name, such as ``--no-serve``."""
    hint: str = ""
    """What to write, if the value is no number, or none of the words."""
    metavar: str = ""
    """The placeholder of the value in the help; empty: N for a whole number, TIME for seconds or a text with a unit (10m), the words of a
    choice, else TEXT."""
    kind: Any = None
    """How the value is checked, if the field's type is not enough: a `Kind`, or a function that makes one when it is first needed."""
    least: float | None = None
    most: float | None = None
    """The smallest and the largest number. Without `least`, a number of seconds must be above 0, and a whole number at least 0. Without
    `most`, the largest is a billion."""
    inline: Any = None
    """A section whose keys stand in the mapping of this section itself, in place of a mapping of their own."""
    live: bool = False
    """``orch init`` writes the key without a comment sign."""
    is_own: bool = False
    """orch itself writes the key, into the spec that it keeps of a run: ``orch init`` and the reference leave it out."""
    everywhere: bool = False
    """The setting also reaches a program that is not Python, because the agent or an environment variable applies it."""


def setting(default: Any, about: str, **more: Any) -> Any:
    """A field with a declaration. `default`: the field's default; ``...``: none. `more`: the fields of `Setting`."""
    metadata = {KEY: Setting(about, **more)}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(section: type) -> Iterator[tuple[dataclasses.Field[Any], Setting]]:
    """The declared fields of a section. A field without a declaration is no setting: orch sets it."""
    for field in dataclasses.fields(section):
        if KEY in field.metadata:
            yield field, field.metadata[KEY]
