"""Derives from the declarations: the command-line options, the JSON Schema, and the file that `orch init` writes.

``python -m orchestrator.model.settings.describe > orchestrator/model/settings/orch.schema.json`` updates the shipped schema.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from worker.settings.declare import Setting
from worker.values.fast_dataclass import dataclass

from .derive import struct_of
from .host_list import Hosts
from .kinds import Flag, Integer, Kind, Number, OneOf, Struct, sentence
from .run_sections import ClusterSpec
from .task_sections import DEVICES, INPUT


def root() -> Struct:
    """The keys of orch.yaml."""
    return struct_of(ClusterSpec)


_SHORT = 70
"""A default with more characters than this is left out of the help of an option; docs/spec.md has the default."""


# --- options ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecOption:
    """A command-line option for a setting. Option, ``ORCH_*`` variable and key of orch.yaml are three names of one setting."""

    name: str
    short: str
    path: str
    """The key that gets the option's value."""
    help: str
    metavar: str
    says: tuple[str, ...] = ()
    """The values of ``--no-name`` and of ``--name``; empty: the option takes a text."""
    adds_up: bool = False
    """A repeated option adds to the value. Of other options the last one counts."""
    choices: tuple[str, ...] = ()
    """The words that the setting knows, if it knows only some."""

    @property
    def variable(self) -> str:
        return "ORCH_" + self.name.lstrip("-").replace("-", "_").upper()

    @property
    def parameter(self) -> str:
        return "spec_" + self.name.lstrip("-").replace("-", "_")


def options() -> tuple[SpecOption, ...]:
    return tuple(_options(root(), ""))


def _options(struct: Struct, around: str) -> Iterator[SpecOption]:
    for name, key in struct.keys.items():
        if key.flag:
            yield _option(key, around + name)
        if isinstance(key.kind, Struct) and around != "tasks.":
            yield from _options(key.kind, f"{around}{name}.")


def _option(key: Setting, path: str) -> SpecOption:
    short, _, name = key.flag.rpartition(" ")
    kind: Kind = key.kind.keys[key.kind.shorthand].kind if isinstance(key.kind, Struct) else key.kind
    simple = "|".join(kind.words) if isinstance(kind, OneOf) else "TEXT"
    if isinstance(kind, Number):
        simple = "N" if kind.WHOLE else "TIME"
    says = ("false", "true") if isinstance(kind, Flag) else ("0", "1") if kind == Integer(0, 1) else ()
    adds_up = isinstance(kind, Hosts)
    text = sentence(key) + " May be repeated." * adds_up
    if key.words and len(key.words) <= _SHORT and (key.words != "none" or says or isinstance(kind, OneOf)):
        text += f" Default: {key.words}."
    return SpecOption(name, short, path, text, key.metavar or simple, says, adds_up, kind.words if isinstance(kind, OneOf) else ())


# --- JSON Schema, template ------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of orch.yaml. `parse` refuses everything that the schema refuses, and checks rules between keys."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:orch-tf:schema:orch.yaml",
        "title": "orch.yaml",
        "description": "A TensorFlow cluster, as `orch up` starts it.",
        "$defs": {part.name: part.definition() for part in (DEVICES, INPUT)},
        **root().json_schema(),
    }


def template() -> str:
    """A valid orch.yaml with every key of a user, its description and its default. Most keys are commented out."""
    head = (
        "# orch.yaml: a cluster for `orch up`. To set a key, remove the # in front of the key and of the key that contains it.\n"
        "# `orch plan` shows what the file means."
    )
    blocks = ["\n".join(_block(name, key)) for name, key in root().keys.items() if not key.is_own]
    return "\n\n".join([head, *blocks]) + "\n"


def short_template(script: str) -> str:
    """A valid orch.yaml with the keys that most runs need."""
    return f"""\
# orch.yaml: a cluster for `orch up`. `orch plan` shows what it means; `orch init --all` writes every key.

script: {script}
#args: ["--epochs", "5"]
#name: digits                   # default: the name of the script

tasks:
  worker: 2
#  ps: 1                        # parameter servers
#  evaluator: 1

#strategy: NAME                # default: by the tasks; orch help strategies

#defaults:
#  env: {{DATA: /data/digits}}
#  devices: {{gpus: auto}}        # or a number for each task

#restart: {{max: 3}}              # restarts after failures
#checkpoints: {{fit: true}}       # let Keras's fit save and resume
#timeouts: {{run_s: 2h, hang_s: 10m}}

#backend: {{hosts: [hostA:2, hostB:2]}}            # over SSH
#backend: {{type: slurm, nodes: 3, time: "2:00:00"}}
#backend: {{type: kubernetes, image: "tensorflow/tensorflow:2.20.0"}}
"""


def _block(name: str, key: Setting, *, inside_comment: bool = False) -> Iterator[str]:
    """The lines of one key: its description, and the key with an example, after a # if the key is not live."""
    for text in (sentence(key), f"Default: {key.words}." if key.words else ""):
        for line in textwrap.wrap(text, 100, break_on_hyphens=False):
            yield f"# {line}"
    commented = not key.live and not inside_comment
    lines = [f"{name}: {key.example}"]
    if not key.example and isinstance(key.kind, Struct):
        parts = (_block(*item, inside_comment=commented or inside_comment) for item in key.kind.keys.items() if not item[1].is_own)
        lines = [f"{name}:", *(f"  {line}" for part in parts for line in part)]
    yield from (f"#{line}" for line in lines) if commented else lines


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
