"""How a setting is declared: a field of a section, which is a frozen dataclass, carries all that there is to know about it.

    @dataclass(frozen=True, slots=True)
    class CollectiveSettings:
        timeout_s: float | None = setting(None, "The longest that one operation waits.", example="30", words="no limit")

The declarations are plain data, so that a task can import them quickly. What checks, describes and writes a field is derived from them in
orchestrator/model/spec; docs/settings.md shows how a setting is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..fast_dataclass import dataclass

KEY = "setting"
"""The key of a field's metadata that holds its `Setting`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """All that there is to know about a field, beyond its name, its type and its default."""

    about: str
    """One sentence: what the setting does."""
    example: str = ""
    """A value as YAML, on one line, for the file that ``orch init`` writes; empty: the default."""
    words: str | None = ""
    """What holds without the setting, in words; empty: the field's default; None: nothing is said of that."""
    flag: str = ""
    """Its option on the command line: ``--ps``, or ``-n --workers``. The option's variable follows from it: ORCH_WORKERS."""
    metavar: str = ""
    """What the help shows in place of a value; empty: N for a whole number, S for seconds, NAME for a choice, else TEXT."""
    help: str = ""
    """A sentence for ``orch up --help``, if `about` is not made for it."""
    no: str = ""
    """The sentence of a second option, ``--no-…``, that turns off what is on by default."""
    kind: Any = None
    """What checks the value, if the field's type does not say so: a `Kind`, or the name of one in orchestrator/model/spec/derive.py."""
    least: float | None = None
    most: float | None = None
    """The smallest and the largest number. Without `least`, a number of seconds must be above 0, and a whole number at least 0. Without
    `most`, the largest is a billion."""
    label: str = ""
    """What the words of a choice are called in a message: "the levels"."""
    key: str = ""
    """The key in orch.yaml, if that is not the field's name: ``threads.intra`` is the key intra of the mapping threads."""
    inline: Any = None
    """A section whose keys stand in the mapping of this section itself, in place of a mapping of their own."""
    live: bool = False
    """``orch init`` writes the key without a comment sign."""
    everywhere: bool = False
    """The setting also reaches a program that is not Python, because the agent or an environment variable applies it."""


def setting(default: Any, about: str, **more: Any) -> Any:
    """A field with a declaration. `default`: the field's default; ``...``: it has none. `more`: the fields of `Setting`."""
    metadata = {KEY: Setting(about, **more)}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(section: type) -> Iterator[tuple[dataclasses.Field[Any], Setting]]:
    """The declared fields of a section. A field without a declaration is no setting: orch fills it in itself."""
    for field in dataclasses.fields(section):
        if KEY in field.metadata:
            yield field, field.metadata[KEY]
