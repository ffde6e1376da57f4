"""The keys of orch.yaml: one table, and what is made from it (the JSON Schema, the file that `orch init` writes).

``python -m orchestrator.model.spec.keys > orchestrator/model/spec/orch.schema.json`` brings the shipped schema up to date.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from worker.records import dataclass

from ..strategies import DEFAULT, STRATEGIES, implied, which, with_section, with_tasks
from .device_keys import DEVICES, OVERRIDES
from .findings import Findings, listed, shown
from .hosts import BACKEND, HOST, Hosts
from .kinds import (
    ANY_TEXT,
    Flag,
    Integer,
    JsonSchema,
    Key,
    Kind,
    Listing,
    Mapping_,
    Number,
    OneOf,
    Struct,
    Text,
)
from .tree import Node, scalar

MAX_TASKS = 100_000
MAX_SECONDS = 1_000_000_000
MAX_RESTARTS = 1_000_000
MAX_NAME = 40
IMPLEMENTATIONS = ("auto", "ring", "nccl")
LOG_LEVELS = ("debug", "info", "warning", "error")
FIRST_PORT, LAST_PORT = 1024, 65535


# --- kinds of this file only --------------------------------------------------------------------


def _name_complaint(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", text):
        return "must be made of letters, digits, '.', '_' and '-' (A-Z, a-z, 0-9), and start with a letter or digit"
    return f"must have at most {MAX_NAME} characters" if len(text) > MAX_NAME else ""


def _variable_complaint(name: str) -> str:
    if not name:
        return "is empty"
    if "=" in name:
        return "must not hold '='"
    if name == "TF_CONFIG" or name.startswith("ORCH_"):
        return "is set by orch itself, for each task"
    if len(json.dumps(name)) > 1000:
        return "is longer than 1,000 characters"  # YAML's limit for a key is 1,024, as written
    return ""


def _workdir_complaint(text: str) -> str:
    if text.startswith("~"):
        return "starts with '~', which only a shell expands: write the path in full"
    return "" if text else "must not be empty"


@dataclass(frozen=True, slots=True)
class PortRange:
    """``41000-41999`` or ``[41000, 41999]``: the first and the last port."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[int, int] | None:
        ends = self._ends(node)
        if len(ends) != 2:
            findings.add(node, path, f"must be a first and a last port, not {shown(node)}", "write 41000-41999")
            return None
        port = Integer(FIRST_PORT, LAST_PORT)
        first, last = (port.check(end, path, findings) for end in ends)
        if first is None or last is None:
            return None
        if first > last:
            findings.add(node, path, f"the first port, {first}, is above the last, {last}")
            return None
        return first, last

    def _ends(self, node: Node) -> list[Node]:
        if isinstance(node.value, list):
            return node.value
        if isinstance(node.value, str) and re.fullmatch(" *[0-9]{1,9} *- *[0-9]{1,9} *", node.value):
            return [scalar(end.strip(), node.place) for end in node.value.split("-")]
        return []

    def json_schema(self) -> JsonSchema:
        port = Integer(FIRST_PORT, LAST_PORT).json_schema()
        pair = {"type": "array", "items": port, "minItems": 2, "maxItems": 2}
        return {"anyOf": [{"type": "string", "pattern": "^ *[0-9]+ *- *[0-9]+ *$"}, pair]}


# --- the table ----------------------------------------------------------------------------------

_TEXT = Text()
_ARGS = Listing(ANY_TEXT)
_ENV = Mapping_(ANY_TEXT, _variable_complaint, "^(?!TF_CONFIG$|ORCH_)[^=]+$")


def _tasks(minimum: int, maximum: int) -> Struct:
    return Struct(
        {
            "count": Key(Integer(minimum, maximum), "How many there are.", "2", "1", live=True),
            "args": Key(_ARGS, "Their arguments, in place of the cluster's.", '["--epochs", "5"]', "args of the cluster"),
            "env": Key(_ENV, "Their environment variables, over those of defaults.env.", "{NAME: value}", "none"),
            "devices": Key(DEVICES, "Their devices, over those of defaults.devices.", "{cpus: 1}", "defaults.devices"),
            "overrides": Key(OVERRIDES, "What holds for single tasks, by index.", "{0: {devices: {cpus: 1}}}", "none"),
        },
        shorthand="count",
    )


def _servers(minimum: int, maximum: int) -> Struct:
    """Of the tf.data service: what orch itself runs has no arguments, and no devices of TensorFlow's runtime."""
    return Struct(
        {
            "count": Key(Integer(minimum, maximum), "How many there are.", "2", "1", live=True),
            "env": Key(_ENV, "Their environment variables, over those of defaults.env.", "{NAME: value}", "none"),
        },
        shorthand="count",
        misplaced={
            "args": "orch itself runs the servers of the tf.data service; they take no args",
            "devices": "the servers of the tf.data service use the CPU; they have no devices to set",
            "overrides": "the servers of the tf.data service use the CPU; they have no devices to set",
        },
    )


_CHIEFS = which(lambda row: bool(row.default_counts["chief"]))
_TASK_TYPES = Struct(
    {
        "chief": Key(
            _tasks(0, 1),
            "The task that leads: 0 or 1.",
            "1",
            f"1 under {_CHIEFS}, else 0 (worker-0 leads)",
        ),
        "worker": Key(
            _tasks(1, MAX_TASKS),
            "The tasks that train: a count, or a mapping as here (so for every type).",
            default="1; on hosts, one for each slot that the other tasks leave",
            live=True,
        ),
        "ps": Key(_tasks(0, MAX_TASKS), f"Parameter servers, for strategy {with_tasks('ps')} only.", "1", "0"),
        "evaluator": Key(_tasks(0, 1), "A task beside the training that evaluates its checkpoints: 0 or 1.", "1", "0"),
        "dispatcher": Key(_servers(0, 1), "Shares the work out among the data workers: 0 or 1.", "1", "1 if there are data workers"),
        "data_worker": Key(
            _servers(0, MAX_TASKS), "Servers of the tf.data service: they make the input that a script distributes to them.", "2", "0"
        ),
    },
    misplaced={"master": "TensorFlow 2 has no task type 'master'; use 'chief'"},
    hint="write {worker: 4}",
)
_DEFAULTS = Struct(
    {
        "env": Key(_ENV, "Environment variables of every task.", "{NAME: value}", "none"),
        "devices": Key(DEVICES, "Devices of every task."),
        "log_level": Key(
            OneOf(LOG_LEVELS, "the levels"),
            f"The least that TensorFlow's runtime logs: {listed(LOG_LEVELS, 'or')}.",
            "warning",
            "TensorFlow's own choice",
        ),
    }
)
_TIMEOUTS = Struct(
    {
        "start_s": Key(
            Number(MAX_SECONDS),
            "Until every task is up. A command that is no Python program is waited for only with this.",
            "120",
            "no limit",
        ),
        "hang_s": Key(Number(MAX_SECONDS), "Without any output or report of any task.", "600", "no limit"),
        "run_s": Key(Number(MAX_SECONDS), "For the whole run, with all its attempts.", "3600", "no limit"),
        "grace_s": Key(Number(MAX_SECONDS, zero=True), "From SIGTERM to SIGKILL, when a task is stopped.", "5", "5"),
    }
)
_COLLECTIVES = Struct(
    {
        "heartbeat_s": Key(
            Number(MAX_SECONDS),
            "A peer that gives no sign of life for so many seconds is given up by TensorFlow.",
            "5",
            "5 (TensorFlow itself: 10)",
        ),
        "timeout_s": Key(
            Number(MAX_SECONDS),
            "The longest that one collective operation waits for its peers. "
            "TensorFlow then spends 2 threads on each operation, for as long as this.",
            "30",
            "no limit",
        ),
        "implementation": Key(
            OneOf(IMPLEMENTATIONS, "the implementations"),
            f"What carries the operations out: {listed(IMPLEMENTATIONS, 'or')}.",
            "nccl",
            "auto, TensorFlow's choice",
        ),
    }
)
_RESTART = Struct(
    {
        "max": Key(Integer(0, MAX_RESTARTS), "How often, in the whole run.", "3", "0"),
        "backoff_s": Key(
            Number(MAX_SECONDS, zero=True),
            "Seconds before the first restart; doubled for each further attempt in a row without progress, varied by a quarter.",
            "1",
            "1",
        ),
        "backoff_max_s": Key(Number(MAX_SECONDS, zero=True), "The longest pause.", "60", "60"),
        "without_progress": Key(
            Integer(0, MAX_RESTARTS),
            "So many attempts in a row without progress end the run, whatever is left of max; 0: they do not. "
            "Progress is a higher step in worker.report(step=...), or a new file in ORCH_CHECKPOINT_DIR.",
            "3",
            "3",
        ),
        "progress_s": Key(
            Number(MAX_SECONDS),
            "An attempt that neither reports nor saves has made progress if it lasted this long.",
            "600",
            "600",
        ),
    },
    shorthand="max",
)

ROOT = Struct(
    {
        "name": Key(
            Text(_name_complaint, {"maxLength": MAX_NAME}),
            "Names the cluster and its runs.",
            "train",
            "taken from script, module or command",
        ),
        "strategy": Key(
            OneOf(tuple(STRATEGIES), "the strategies"),
            f"How TensorFlow spreads the training: {which(lambda row: True)}.",
            DEFAULT.name,
            f"{implied({'ps': 1}).name} if there are ps tasks, else {DEFAULT.name}",
        ),
        "script": Key(
            _TEXT, "The Python file that every task runs. Exactly one of script, module and command is needed.", "train.py", live=True
        ),
        "module": Key(_TEXT, "The Python module that every task runs, as python -m does.", "package.train"),
        "command": Key(_TEXT, "The program that every task runs: a path, or a name for PATH. Its arguments stand in args.", "./train.sh"),
        "args": Key(_ARGS, "The arguments of every task.", '["--epochs", "5"]', "none"),
        "python": Key(
            _TEXT,
            "The Python of the tasks: a path, or a name for PATH.",
            "python3",
            "the one that runs orch; on hosts with code: ship or setup, python3",
        ),
        "workdir": Key(
            Text(_workdir_complaint),
            "The directory that the tasks start in. A relative one starts at the default.",
            ".",
            "the directory of orch.yaml; without one, where orch was started",
        ),
        "tasks": Key(_TASK_TYPES, "How many tasks there are of each type.", live=True),
        "defaults": Key(_DEFAULTS, "What holds for every task, unless its type says otherwise."),
        "serve": Key(Flag(), "Let orch run the TensorFlow server of worker and ps tasks, for a script that starts none.", "false", "false"),
        "preload": Key(
            Listing(ANY_TEXT),
            "Modules that each host imports once, for its tasks to be forked from; [] turns that off.",
            "[tensorflow]",
            "tensorflow, if the program uses it",
        ),
        "timeouts": Key(_TIMEOUTS, "Limits in seconds."),
        "collectives": Key(_COLLECTIVES, f"How the workers of {with_section('collectives')} wait for each other."),
        "restart": Key(_RESTART, "What is started again after a failure: a number of restarts, or a mapping as here."),
        "ports": Key(PortRange(), "The first and last port that may be used.", "41000-41999", "any free port"),
        "backend": Key(BACKEND, "Where the tasks run."),
    },
    misplaced={
        "max_restarts": "unknown key 'max_restarts'; write it as restart: {max: 3}",
        "workers": "unknown key 'workers'; write it as tasks: {worker: 4}",
        "code": "unknown key 'code'; write it as backend: {code: ship}",
        "env": "unknown key 'env'; write it as defaults: {env: {NAME: value}}",
        "devices": "unknown key 'devices'; write it as defaults: {devices: {cpus: 2}}",
        "log_level": "unknown key 'log_level'; write it as defaults: {log_level: info}",
    },
)


# --- made from the table ------------------------------------------------------------------------


def shorthand(path: Sequence[str]) -> str:
    """The key that a scalar at this path stands for, or an empty text: ``backend: local`` is ``backend: {type: local}``."""
    kind: Kind | None = ROOT
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
        "$defs": {DEVICES.name: DEVICES.definition()},
        **ROOT.json_schema(),
    }


def template() -> str:
    """A commented orch.yaml with every key, its description and its default. It is valid as it stands."""
    head = "# orch.yaml: a cluster for `orch up`. Take away the # in front of a key to set it."
    blocks = ["\n".join(_block(name, key)) for name, key in ROOT.keys.items()]
    return "\n\n".join([head, *blocks]) + "\n"


def _block(name: str, key: Key, *, inside_comment: bool = False) -> Iterator[str]:
    """The lines of one key: what it is for, and the key itself with an example, behind a # if it is not live."""
    for line in textwrap.wrap(key.description, 100):
        yield f"# {line}"
    commented = not key.live and not inside_comment
    lines = [f"{name}: {key.example}"]
    if not key.example and isinstance(key.kind, Struct):
        parts = (_block(*item, inside_comment=commented or inside_comment) for item in key.kind.keys.items())
        lines = [f"{name}:", *(f"  {line}" for part in parts for line in part)]
    yield from (f"#{line}" for line in lines) if commented else lines


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
