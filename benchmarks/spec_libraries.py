"""What a library for checking settings would cost on every `orch up`, and what it says about a bad document.

    pip install cattrs marshmallow voluptuous pydantic msgspec pyyaml     # in an environment of their own
    python -m benchmarks.spec_libraries --rounds 20

Each library gets a model of orch.yaml's size (12 sections, 75 fields) and is measured in fresh interpreters that have already imported
what orch imports anyway; the libraries take turns, and the median is printed. The decision is in docs/adding-a-setting.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

SECTIONS = {
    "Threads": "intra:int inter:int",
    "Devices": "gpus:int share_gpus:bool memory_growth:bool memory_limit_mb:int logical_gpus:ints cpus:int threads:Threads affinity:bool "
    "soft_placement:bool log_placement:bool xla:bool tf32:bool determinism:bool",
    "Override": "devices:Devices",
    "Task": "count:int args:texts env:env devices:Devices overrides:overrides",
    "Servers": "count:int env:env",
    "Tasks": "chief:Task worker:Task ps:Task evaluator:Task dispatcher:Servers data_worker:Servers",
    "Defaults": "env:env devices:Devices log_level:word",
    "Timeouts": "start_s:float hang_s:float run_s:float grace_s:float",
    "Collectives": "heartbeat_s:float timeout_s:float implementation:word",
    "Restart": "max:int backoff_s:float backoff_max_s:float without_progress:int progress_s:float",
    "Host": "name:str slots:int address:str interface:str user:str port:int python:str setup:texts",
    "Backend": "type:word hosts:hosts code:word code_limit_mb:float setup:texts ssh:texts lost_after_s:float",
    "Root": "name:str strategy:word script:str module:str command:str args:texts python:str workdir:str tasks:Tasks defaults:Defaults "
    "serve:bool preload:texts timeouts:Timeouts collectives:Collectives restart:Restart ports:ints backend:Backend",
}
DOCUMENT = {
    "script": "train.py",
    "colour": "red",
    "tasks": {"worker": {"count": 0, "cuont": 2}, "ps": {"count": "two"}},
    "timeouts": {"run_s": -1},
}
"""Five things are wrong with it, at colour, tasks.worker.count, tasks.worker.cuont, tasks.ps.count and timeouts.run_s."""

COMMON = f"""
import argparse, asyncio, dataclasses, difflib, enum, inspect, ipaddress, json, re, sys, textwrap, time, typing
import click, yaml
SECTIONS = {{name: [part.split(":") for part in text.split()] for name, text in {SECTIONS!r}.items()}}
DOCUMENT = {DOCUMENT!r}
began = time.process_time()
"""
# A source of dataclasses, as a person would write them; `types` says how each word above is annotated.
DATACLASSES = """
TYPES = {
    "ints": "tuple[int, ...]", "texts": "tuple[str, ...]", "env": "dict[str, str]", "word": "Literal['a', 'b']",
    "overrides": "dict[str, Override]", "hosts": "tuple[Host, ...]",
}
def source(decorator, types, base=""):
    for name, parts in SECTIONS.items():
        yield f"{decorator}\\nclass {name}{base}:"
        for field, kind in parts:
            yield f"    {field}: {types.get(kind, kind)} | None = None"
"""
# What a mistake in one of these says is what its author would see: the text runs in an interpreter of its own.
MODELS = {
    "msgspec": """
import msgspec
from typing import Annotated, Literal
from msgspec import Meta, Struct
"""
    + DATACLASSES
    + """
types = TYPES | {"int": "Annotated[int, Meta(ge=1)]", "float": "Annotated[float, Meta(gt=0)]"}
exec("\\n".join(source("", types, "(Struct, frozen=True, forbid_unknown_fields=True)")))
def check():
    try:
        msgspec.convert(DOCUMENT, Root)
    except msgspec.ValidationError as error:
        return [str(error)]
built = time.process_time()
schema = lambda: msgspec.json.schema(Root)
""",
    "pydantic": """
from typing import Annotated, Literal
from pydantic import BaseModel, ConfigDict, Field, ValidationError
class Base(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
"""
    + DATACLASSES
    + """
types = TYPES | {"int": "Annotated[int, Field(ge=1)]", "float": "Annotated[float, Field(gt=0)]"}
exec("\\n".join(source("", types, "(Base)")))
def check():
    try:
        Root.model_validate(DOCUMENT)
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
built = time.process_time()
schema = lambda: Root.model_json_schema()
""",
    "cattrs": """
import attrs, cattrs
from attrs import validators
from cattrs import Converter, transform_error
def at_least_1(instance, attribute, value):
    if value is not None and value < 1:
        raise ValueError(f"must be at least 1, not {value}")
"""
    + DATACLASSES
    + """
checked = "= attrs.field(default=None, validator=at_least_1)"
from typing import Literal
text = "\\n".join(source("@attrs.frozen", TYPES))
for kind in ("int", "float"):
    text = text.replace(f": {kind} | None = None", f": {kind} | None {checked}")
exec(text)
converter = Converter(forbid_extra_keys=True)
for name in SECTIONS:
    converter.get_structure_hook(globals()[name])
def check():
    try:
        converter.structure(DOCUMENT, Root)
    except Exception as error:
        return transform_error(error)
built = time.process_time()
schema = None
""",
    "marshmallow": """
from marshmallow import Schema, ValidationError, fields, validate
makers = {
    "int": lambda: fields.Integer(strict=True, validate=validate.Range(min=1)),
    "float": lambda: fields.Float(validate=validate.Range(min=0)),
    "bool": fields.Boolean,
    "str": fields.String,
    "ints": lambda: fields.List(fields.Integer()),
    "texts": lambda: fields.List(fields.String()),
    "env": lambda: fields.Dict(fields.String(), fields.String()),
    "word": lambda: fields.String(validate=validate.OneOf("ab")),
    "overrides": lambda: fields.Dict(fields.String(), fields.Nested(made["Override"])),
    "hosts": lambda: fields.List(fields.Nested(made["Host"])),
}
made = {}
for name, parts in SECTIONS.items():
    found = {field: makers[kind]() if kind in makers else fields.Nested(made[kind]) for field, kind in parts}
    made[name] = type(name, (Schema,), found)
root = made["Root"]()
def check():
    return [str(root.validate(DOCUMENT))]
built = time.process_time()
schema = None
""",
    "voluptuous": """
from voluptuous import All, In, MultipleInvalid, Optional, Range, Schema
makers = {
    "int": All(int, Range(min=1)), "float": All(float, Range(min=0)), "bool": bool, "str": str, "ints": [int], "texts": [str],
    "env": {str: str}, "word": In("ab"),
}
for name, parts in SECTIONS.items():
    makers[name] = {Optional(field): makers[kind] for field, kind in parts}
    makers["overrides"], makers["hosts"] = {str: makers.get("Override")}, [makers.get("Host")]
root = Schema(makers["Root"])
def check():
    try:
        root(DOCUMENT)
    except MultipleInvalid as error:
        return [str(one) for one in error.errors]
built = time.process_time()
schema = None
""",
}
REPORT = """
found = check()
checked = time.process_time()
if "--say" in sys.argv:
    print(*found, sep="\\n      ")
    print("      JSON Schema:", "yes" if schema else "no")
else:
    print((built - began) * 1000, (checked - built) * 1000)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    figures: dict[str, list[list[float]]] = {name: [] for name in MODELS}
    for _ in range(rounds):
        for name, taken in figures.items():
            taken.append([float(word) for word in _run(name).split()])
    for name, taken in figures.items():
        made, checked = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name}: {made:.0f} ms of CPU to import and to build the model, {checked:.1f} ms to check; of 5 mistakes it says:")
        print("     ", _run(name, "--say"), end="")


def _run(name: str, *words: str) -> str:
    return subprocess.run([sys.executable, "-c", COMMON + MODELS[name] + REPORT, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
