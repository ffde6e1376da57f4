"""What follows from the declarations for people and for tools: command-line options, the JSON Schema, the file that `orch init` writes.

``python -m orchestrator.model.spec.describe > orchestrator/model/spec/orch.schema.json`` brings the shipped schema up to date.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from worker.fast_dataclass import dataclass

from .derive import struct_of
from .kinds import Flag, Integer, Key, Kind, Mapping_, Number, OneOf, Struct, Text
from .sections.host_list import HOST, Hosts
from .sections.run_sections import ClusterSpec
from .sections.task_sections import DEVICES, INPUT


def root() -> Struct:
    """The keys of orch.yaml."""
    return struct_of(ClusterSpec)


_SHORT = 70
"""A default with more characters than this is left out of the help of an option; docs/spec.md has the default."""


# --- options ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecOption:
    """A command-line option that says something of a spec: flag, ``ORCH_*`` variable and key of orch.yaml are three names of one thing."""

    name: str
    short: str
    path: str
    """The key that the option's text is for."""
    help: str
    metavar: str
    says: str = ""
    """What the option means by itself; empty: it takes a text."""
    parts: tuple[str, ...] = ()
    """The keys below `path` that the text is for, with commas between; those that are left out keep what they have."""
    is_text: bool = False
    """Whatever is said is a text, though YAML would read it as something else, such as a name of "null"."""
    adds_up: bool = False
    """Given again, the option adds to what was said before; of other options the last one counts."""

    @property
    def variable(self) -> str:
        return "ORCH_" + self.name.lstrip("-").replace("-", "_").upper()

    @property
    def parameter(self) -> str:
        return "spec_" + self.name.lstrip("-").replace("-", "_")

    @property
    def off(self) -> str:
        """What an option without a text means if its variable turns it off."""
        return {"true": "false", "false": "true"}.get(self.says, "0")


def options() -> tuple[SpecOption, ...]:
    """The options of all settings, those for the number of tasks first, and of these the workers."""
    return tuple(sorted(_options(root(), ""), key=lambda option: (not option.path.startswith("tasks."), option.path != "tasks.worker")))


def _options(struct: Struct, around: str) -> Iterator[SpecOption]:
    for name, key in struct.keys.items():
        if key.flag:
            yield from _of_key(key, around + name)
        if isinstance(key.kind, Struct) and around != "tasks.":
            yield from _options(key.kind, f"{around}{name}.")


def _of_key(key: Key, path: str) -> Iterator[SpecOption]:
    short, _, name = key.flag.rpartition(" ")
    kind: Kind = key.kind
    parts: tuple[str, ...] = ()
    if isinstance(kind, Struct) and kind.shorthand:
        kind = kind.keys[kind.shorthand].kind
    elif isinstance(kind, Struct):
        parts = tuple(kind.keys)
    metavar = key.metavar or {Integer: "N", Number: "S", OneOf: "NAME"}.get(type(kind), "TEXT")
    says = "true" if isinstance(kind, Flag) else "1" if kind == Integer(0, 1) else ""
    text = key.help or key.sentence
    if key.default and len(key.default) <= _SHORT and not says and (key.default != "none" or isinstance(kind, OneOf)):
        text += f" Default: {key.default}."
    yield SpecOption(name, short, path, text, metavar, says, parts, isinstance(kind, Text), isinstance(kind, Hosts))
    if key.no:
        yield SpecOption(name.replace("--", "--no-", 1), "", path, key.no, metavar, "false")


# --- paths, JSON Schema, template ------------------------------------------------------------------------


def shorthand(path: Sequence[str]) -> str:
    """The key that a scalar at this path stands for, or an empty text: ``backend: local`` is ``backend: {type: local}``."""
    kind: Kind | None = root()
    for key in path:
        if isinstance(kind, Struct):
            kind = kind.keys[key].kind if key in kind.keys else None
        elif isinstance(kind, Mapping_):
            kind = kind.value
        else:
            kind = HOST if isinstance(kind, Hosts) else None
    return kind.shorthand if isinstance(kind, Struct) else ""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of orch.yaml. What it refuses, `parse` refuses too; `parse` also checks rules across keys."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orch.yaml",
        "description": "A TensorFlow cluster, as `orch up` starts it.",
        "$defs": {part.name: part.definition() for part in (DEVICES, INPUT)},
        **root().json_schema(),
    }


def template() -> str:
    """A commented orch.yaml with every key, its description and its default. It is valid as it stands."""
    head = (
        "# orch.yaml: a cluster for `orch up`. To set a key, remove the # in front of the key and of the key that contains it.\n"
        "# `orch plan` shows what the file means."
    )
    blocks = ["\n".join(_block(name, key)) for name, key in root().keys.items()]
    return "\n\n".join([head, *blocks]) + "\n"


def _block(name: str, key: Key, *, inside_comment: bool = False) -> Iterator[str]:
    """The lines of one key: what it is for, and the key itself with an example, behind a # if it is not live."""
    for text in (key.sentence, f"Default: {key.default}." if key.default else ""):
        for line in textwrap.wrap(text, 100, break_on_hyphens=False):
            yield f"# {line}"
    commented = not key.live and not inside_comment
    lines = [f"{name}: {key.example}"]
    if not key.example and isinstance(key.kind, Struct):
        parts = (_block(*item, inside_comment=commented or inside_comment) for item in key.kind.keys.items())
        lines = [f"{name}:", *(f"  {line}" for part in parts for line in part)]
    yield from (f"#{line}" for line in lines) if commented else lines


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
