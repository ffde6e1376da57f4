"""Makes a `ClusterSpec` from a document, or reports all mistakes; and makes a document from a `ClusterSpec`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from worker.protocol.messages import Program
from worker.protocol.task_id import DATA_SERVICE
from worker.settings.keras_settings import LEGACY
from worker.settings.tpu_settings import AUTO, TpuSettings

from ...errors import Problem, SpecError
from . import cluster_rules
from .backend_sections import BackendSpec, KubernetesSettings
from .derive import make, plain, struct_of
from .device_rules import LEVEL
from .document import Node
from .draft import Draft, draft_of
from .findings import Findings
from .kinds import MAX_NAME
from .run_sections import PROGRAM_KINDS, ClusterSpec
from .task_sections import TaskDevices, TaskSpec

LOG_LEVEL_ENV = {
    "debug": {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_MAX_VLOG_LEVEL": "1"},
    "info": {"TF_CPP_MIN_LOG_LEVEL": "0"},
    "warning": {"TF_CPP_MIN_LOG_LEVEL": "1"},
    "error": {"TF_CPP_MIN_LOG_LEVEL": "2"},
}
"""The variables that TensorFlow's runtime reads (xla/tsl/platform/default/logging.cc)."""
KERAS_ENV = {"v3": {LEGACY: "0"}, "legacy": {LEGACY: "1"}}
"""The variable that decides which Keras `tf.keras` is (tensorflow/python/util/keras_deps and lazy_loader.py)."""


def parse(document: Node, *, workdir: str) -> ClusterSpec:
    """The spec of a document. `workdir`: an absolute path, the base of the key `workdir`. Raises `SpecError` with all problems."""
    if (foreign := _foreign(document)) is not None:
        raise SpecError(foreign)
    findings = Findings()
    draft = draft_of(document, struct_of(ClusterSpec).check(document, "", findings) or {})
    findings.found += cluster_rules.problems(draft, findings.spoiled)
    if findings.problems:
        raise SpecError(*findings.problems)
    return _spec(draft, workdir)


def _foreign(document: Node) -> Problem | None:
    """The message about a file of another program; None: it is no such file."""
    keys = document.value if isinstance(document.value, dict) else {}
    if {"apiVersion", "kind"} <= keys.keys():
        kind = keys["kind"].text
        topic = "tfjob" if kind == "TFJob" else "kubectl"
        what = f"this is a manifest of Kubernetes (kind: {kind:.40}), and orch.yaml has other keys"
        return Problem(keys["kind"].place, what, f"orch help {topic} has both side by side, and orch init writes an orch.yaml")
    if "services" in keys:
        what = "this is a file of docker compose, and orch.yaml has other keys"
        return Problem(keys["services"].place, what, "orch help compose has both side by side, and orch init writes an orch.yaml")
    return None


def _at(backend: BackendSpec, workdir: str) -> BackendSpec:
    """The backend, whose files are found from every directory."""
    if isinstance(backend, KubernetesSettings) and backend.kubeconfig:
        return replace(backend, kubeconfig=str(PurePosixPath(workdir, backend.kubeconfig)))
    return backend


def _spec(draft: Draft, workdir: str) -> ClusterSpec:
    given = draft.given
    kind = next(kind for kind in PROGRAM_KINDS if kind in given)
    program = Program(kind, _shipped_path(draft, kind, workdir), given.get("args", ()))
    defaults = given.get("defaults", {})
    keras = KERAS_ENV.get(given.get("keras", {}).get("mode", ""), {})
    env = LOG_LEVEL_ENV.get(defaults.get("log_level", ""), {}) | keras | defaults.get("env", {})
    if defaults.get("devices", {}).get("log_placement"):
        env |= {LEVEL: "0"}  # a template must start with this variable too
    return make(
        ClusterSpec,
        given,
        name=given.get("name") or _derived_name(program),
        strategy=draft.strategy.name,
        program=program,
        tasks=tuple(_task_spec(draft, kind) for kind, count in draft.counts.items() if count),
        workdir=str(PurePosixPath(workdir, given.get("workdir", ""))),
        env=env,
        serve=given.get("serve", kind == "function" and any(role.serves for role in draft.strategy.roles.values())),
        backend=_at(draft.backend, workdir),
        tpu=_tpu(draft),
    )


def _tpu(draft: Draft) -> TpuSettings:
    """The section `tpu`. For a strategy with a TPU it is never the default, because the bootstrap acts only on a section that is set."""
    tpu = make(TpuSettings, draft.given.get("tpu", {}))
    takes_one = not draft.strategy.refuses("tpu") and "command" not in draft.given
    return replace(tpu, tpu=AUTO) if takes_one and not tpu.tpu else tpu


def _shipped_path(draft: Draft, kind: str, workdir: str) -> str:
    """The path of the program on the hosts: relative, if orch copies the working directory. Raises `SpecError`."""
    target: str = draft.given[kind]
    if kind == "module" or not draft.backend.copies_workdir or not target.startswith("/"):
        return target
    root = PurePosixPath(workdir, draft.given.get("workdir", ""))
    if PurePosixPath(target).is_relative_to(root):
        return str(PurePosixPath(target).relative_to(root))
    if kind == "command":
        return target  # a program that is installed on the hosts
    message = f"{kind}: {target} lies outside of {root}, which is what is copied to the hosts"
    raise SpecError(Problem(draft.place(kind), message, "run it from a directory around it, or name that with workdir:"))


def _task_spec(draft: Draft, kind: str) -> TaskSpec:
    own = draft.given.get("tasks", {}).get(kind, {})
    if kind in DATA_SERVICE:
        return make(TaskSpec, own, type=kind, count=draft.counts[kind])
    defaults = {key: value for key, value in draft.given.get("defaults", {}).items() if key != "env"} | {"input": draft.given.get("input")}
    if not draft.strategy.role(kind).uses_gpus:
        defaults["devices"] = {key: value for key, value in defaults.get("devices", {}).items() if key != "gpus"}
    least = draft.least_workers if kind == "worker" else 0
    special = {"type": kind, "count": draft.counts[kind], "least": least, "overrides": {}}
    tasks = make(TaskSpec, own, make(TaskSpec, defaults, **special), **special)
    overrides = own.get("overrides", {}).items()
    return replace(tasks, overrides={int(index): make(TaskDevices, one.get("devices", {}), tasks.devices) for index, one in overrides})


def _derived_name(program: Program) -> str:
    """``train`` for ``src/train.py``, ``pkg.train`` and ``/opt/bin/train``; characters that a name may not have become ``-``."""
    last = program.target.rpartition(".")[2] if program.kind == "module" else PurePosixPath(program.target).stem
    return re.sub("[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:MAX_NAME] or "run"


def to_document(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as plain data with the keys of orch.yaml. `parse` makes the same spec of it, also as JSON."""
    return {
        **plain(spec, leave_out=("program", "tasks", "env")),
        spec.program.kind: spec.program.target,
        "args": list(spec.program.args),
        "tasks": {tasks.type: _task_document(tasks, spec) for tasks in spec.tasks if tasks.type != "dispatcher"},
        "defaults": {"env": dict(spec.env)},
    }


def _task_document(tasks: TaskSpec, spec: ClusterSpec) -> dict[str, Any]:
    """The keys of one type of tasks. Its input is written whole if it differs from the cluster's: its defaults then win."""
    differs = tasks.type not in DATA_SERVICE and tasks.input != spec.input
    span = {"count": f"{tasks.least}:{tasks.count}"} if tasks.least else {}
    return plain(tasks, leave_out=("input",)) | span | ({"input": plain(tasks.input, whole=True)} if differs else {})
