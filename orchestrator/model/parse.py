"""A document -> a `ClusterSpec`, or everything that is wrong with it; and the way back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath
from typing import Any

from worker.contract import DATA_SERVICE, TASK_TYPES, CollectiveSettings, Program, few

from ..errors import Problem, SpecError
from . import device_keys, device_rules, slots
from .device_rules import LEVEL
from .document import Node, place_of
from .findings import Findings, listed
from .keys import MAX_NAME, MAX_TASKS, ROOT
from .spec import (
    DEFAULT_COLLECTIVES,
    PROGRAM_KINDS,
    SINGLE_TASK_STRATEGIES,
    BackendSpec,
    ClusterSpec,
    Restart,
    TaskSpec,
    Timeouts,
    computes,
)

LOG_LEVEL_ENV = {
    "debug": {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_MAX_VLOG_LEVEL": "1"},
    "info": {"TF_CPP_MIN_LOG_LEVEL": "0"},
    "warning": {"TF_CPP_MIN_LOG_LEVEL": "1"},
    "error": {"TF_CPP_MIN_LOG_LEVEL": "2"},
}
"""What TensorFlow's runtime reads (xla/tsl/platform/default/logging.cc)."""


def parse(document: Node, *, workdir: str) -> ClusterSpec:
    """The spec that a document means. `workdir`: an absolute path, the default and the base of the key `workdir`.

    Raises `SpecError` with every problem of the document.
    """
    findings = Findings()
    given = ROOT.check(document, "", findings) or {}
    draft = _draft(document, given)
    for reads, rule in RULES:
        if findings.sound(reads) and (problem := rule(draft)):
            findings.note(problem)
    for problem in _device_problems(draft, findings):
        findings.note(problem)
    if findings.problems:
        raise SpecError(*findings.problems)
    return _spec(draft, workdir)


# --- rules across keys --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """What a document says once its keys are checked one by one. `counts` holds the defaults; a count of zero stays."""

    document: Node
    given: Mapping[str, Any]
    strategy: str
    counts: Mapping[str, int]

    def place(self, path: str) -> str:
        return place_of(self.document, path)


def _draft(document: Node, given: Mapping[str, Any]) -> Draft:
    asked = {kind: tasks.get("count", 1) for kind, tasks in given.get("tasks", {}).items()}
    strategy = given.get("strategy") or ("parameter_server" if asked.get("ps") else "multi_worker_mirrored")
    counts = {"worker": 1, "chief": 1 if strategy == "parameter_server" else 0}
    counts = counts | ({"dispatcher": 1} if asked.get("data_worker") else {}) | asked
    if "count" not in given.get("tasks", {}).get("worker", {}) and strategy not in SINGLE_TASK_STRATEGIES:
        counts["worker"] = _free_slots(given, sum(counts.values()) - counts["worker"])
    return Draft(document, given, strategy, {kind: counts[kind] for kind in TASK_TYPES if kind in counts})


def _free_slots(given: Mapping[str, Any], others: int) -> int:
    """How many workers there are if nobody says so: one for each slot that the others leave."""
    hosts = given.get("backend", {}).get("hosts", ())
    return max(1, sum(host.slots or 1 for host in hosts) - others)


def _one_program(draft: Draft) -> Problem | None:
    kinds = [kind for kind in PROGRAM_KINDS if kind in draft.given]
    if not kinds:
        return Problem(
            draft.document.place, "there is nothing to run", f"give one of {listed(PROGRAM_KINDS, 'or')}, such as script: train.py"
        )
    if len(kinds) > 1:
        first = draft.place(kinds[0])
        return Problem(draft.place(kinds[1]), f"{listed(kinds)} are given; only one can run", f"{kinds[0]} is at {first}" if first else "")
    return None


def _single_task(draft: Draft) -> Problem | None:
    training = sum(count for kind, count in draft.counts.items() if kind not in DATA_SERVICE)
    if draft.strategy not in SINGLE_TASK_STRATEGIES or training == 1:
        return None
    message = f"strategy {draft.strategy} runs in one process: it takes 1 task; for several use multi_worker_mirrored"
    return Problem(draft.place("tasks"), message)


def _servers_have_their_strategy(draft: Draft) -> Problem | None:
    if draft.strategy == "multi_worker_mirrored" and draft.counts.get("ps"):
        return Problem(draft.place("tasks.ps.count"), "tasks.ps: ps tasks are for strategy parameter_server, not multi_worker_mirrored")
    return None


def _parameter_server_has_servers(draft: Draft) -> Problem | None:
    if draft.strategy == "parameter_server" and not draft.counts.get("ps"):
        place = draft.place("tasks.ps.count" if "ps" in draft.counts else "strategy")
        return Problem(place, "strategy parameter_server needs at least 1 ps task", "write tasks: {ps: 1}")
    return None


def _parameter_server_has_a_chief(draft: Draft) -> Problem | None:
    if draft.strategy == "parameter_server" and not draft.counts["chief"]:
        message = "tasks.chief: must be 1 under strategy parameter_server, whose chief leads the others"
        return Problem(draft.place("tasks.chief.count"), message, "leave it out: 1 is the default")
    return None


def _data_service_is_whole(draft: Draft) -> Problem | None:
    dispatchers, workers = (draft.counts.get(kind, 0) for kind in DATA_SERVICE)
    if bool(dispatchers) == bool(workers):
        return None
    if workers:
        message = "tasks.dispatcher: must be 1 where there are data workers, whose work it shares out"
        return Problem(draft.place("tasks.dispatcher.count"), message, "leave it out: 1 is the default")
    message = "tasks.dispatcher: has nobody to give work to: there are no data workers"
    return Problem(draft.place("tasks.dispatcher.count"), message, "write tasks: {data_worker: 2}, which brings a dispatcher")


def _serve_needs_servers(draft: Draft) -> Problem | None:
    if draft.given.get("serve") and draft.strategy != "parameter_server":
        return Problem(draft.place("serve"), f"serve: is for strategy parameter_server, not {draft.strategy}")
    return None


def _collectives_have_their_strategy(draft: Draft) -> Problem | None:
    if draft.given.get("collectives") and draft.strategy != "multi_worker_mirrored":
        return Problem(draft.place("collectives"), f"collectives: is for strategy multi_worker_mirrored, not {draft.strategy}")
    return None


def _collectives_have_their_program(draft: Draft) -> Problem | None:
    if draft.given.get("collectives") and "command" in draft.given:
        message = "collectives: would be set inside a Python program, and this cluster runs a command"
        return Problem(draft.place("collectives"), message, "run the script itself: script: train.py, or a module")
    return None


def _not_too_many(draft: Draft) -> Problem | None:
    if (total := sum(draft.counts.values())) > MAX_TASKS:
        return Problem(draft.place("tasks"), f"tasks: there are {total:,} in all; the limit is {MAX_TASKS:,}")
    return None


def _ports_for_all(draft: Draft) -> Problem | None:
    ports = draft.given.get("ports")
    if not ports or ports[1] - ports[0] + 1 >= sum(draft.counts.values()):
        return None
    host, needed = _most_ports(draft)
    if ports[1] - ports[0] + 1 >= needed:
        return None
    where = f" on host {host}" if host else ""
    message = f"ports: {ports[0]}-{ports[1]} are {ports[1] - ports[0] + 1} ports; {needed} tasks{where} need one each"
    return Problem(draft.place("ports"), message, "give a wider range, or none: free ports are found")


def _most_ports(draft: Draft) -> tuple[str, int]:
    """The host that needs the most ports, each holds its own, and how many; without a name where there is one host only."""
    hosts = draft.given.get("backend", {}).get("hosts", ())
    assignment = slots.assign(draft.counts, slots.count_slots(hosts), [host.name for host in hosts] or [""])
    needs = {host: slots.ports_needed(ids, draft.strategy) for host, ids in assignment.items()}
    host = max(needs, key=needs.__getitem__)
    return host if len(hosts) > 1 else "", needs[host]


def _device_problems(draft: Draft, findings: Findings) -> Iterator[Problem]:
    kinds = (kind for kind in draft.counts if kind not in DATA_SERVICE and findings.sound([f"tasks.{kind}.count"]))
    counts = {kind: draft.counts[kind] for kind in kinds}
    for path, message, hint in device_rules.complaints(draft.given, counts, "command" in draft.given):
        yield Problem(draft.place(path), message, hint)


def _hosts_have_their_backend(draft: Draft) -> Problem | None:
    backend = draft.given.get("backend", {})
    kind = _backend_type(backend)
    if kind == "ssh" and "hosts" not in backend:
        return Problem(draft.place("backend"), "backend ssh has no hosts", "name them: -H hostA:2,hostB:2, or backend: {hosts: ...}")
    if kind == "local" and "hosts" in backend:
        return Problem(
            draft.place("backend.hosts"), "backend.hosts: are for backend ssh, not local", "write backend: {type: ssh, hosts: ...}"
        )
    return None


def _enough_slots(draft: Draft) -> Problem | None:
    hosts = draft.given.get("backend", {}).get("hosts", ())
    free, total = slots.count_slots(hosts), sum(draft.counts.values())
    if free is None or total <= sum(free.values()):
        return None
    named = few([f"{name}:{count}" for name, count in free.items()], 8)
    message = f"backend.hosts: {total} tasks do not fit into {sum(free.values())} slots ({named})"
    return Problem(draft.place("backend.hosts"), message, "name more slots, or fewer tasks")


def _backend_type(backend: Mapping[str, Any]) -> str:
    return str(backend.get("type") or ("ssh" if "hosts" in backend else "local"))


_COUNTS = ("strategy", *(f"tasks.{kind}.count" for kind in TASK_TYPES))
RULES: tuple[tuple[tuple[str, ...], Callable[[Draft], Problem | None]], ...] = (
    (PROGRAM_KINDS, _one_program),
    (_COUNTS, _single_task),
    (_COUNTS, _servers_have_their_strategy),
    (_COUNTS, _parameter_server_has_servers),
    (_COUNTS, _parameter_server_has_a_chief),
    (_COUNTS, _data_service_is_whole),
    (("serve", "strategy", "tasks.ps.count"), _serve_needs_servers),
    ((*_COUNTS, "collectives"), _collectives_have_their_strategy),
    ((*PROGRAM_KINDS, "collectives"), _collectives_have_their_program),
    (_COUNTS, _not_too_many),
    ((*_COUNTS, "ports", "backend.hosts"), _ports_for_all),
    (("backend.type", "backend.hosts"), _hosts_have_their_backend),
    ((*_COUNTS, "backend.hosts"), _enough_slots),
)
"""Each rule with the paths it reads: a rule is not asked about values that are already known to be wrong."""


# --- the spec -----------------------------------------------------------------------------------


def _spec(draft: Draft, workdir: str) -> ClusterSpec:
    given = draft.given
    kind = next(kind for kind in PROGRAM_KINDS if kind in given)
    program = Program(kind, _shipped_path(draft, kind, workdir), given.get("args", ()))
    defaults = given.get("defaults", {})
    env = LOG_LEVEL_ENV.get(defaults.get("log_level", ""), {}) | defaults.get("env", {})
    if defaults.get("devices", {}).get("log_placement"):
        env = {LEVEL: "0"} | env  # here and not only in each task's own, so that a template is started under it
    return ClusterSpec(
        name=given.get("name") or _derived_name(program),
        strategy=draft.strategy,
        program=program,
        tasks=tuple(_task_spec(draft, kind) for kind, count in draft.counts.items() if count),
        workdir=str(PurePosixPath(workdir, given.get("workdir", ""))),
        python=given.get("python", ""),
        env=env,
        serve=given.get("serve", False),
        preload=given.get("preload"),
        ports=given.get("ports"),
        timeouts=Timeouts(**given.get("timeouts", {})),
        collectives=replace(DEFAULT_COLLECTIVES, **given.get("collectives", {})),
        restart=Restart(**given.get("restart", {})),
        backend=BackendSpec(**{**given.get("backend", {}), "type": _backend_type(given.get("backend", {}))}),
    )


def _shipped_path(draft: Draft, kind: str, workdir: str) -> str:
    """The program as the hosts will find it: a directory that is copied lies elsewhere there. Raises `SpecError`."""
    target: str = draft.given[kind]
    if kind == "module" or draft.given.get("backend", {}).get("code") != "ship" or not target.startswith("/"):
        return target
    root = PurePosixPath(workdir, draft.given.get("workdir", ""))
    if PurePosixPath(target).is_relative_to(root):
        return str(PurePosixPath(target).relative_to(root))
    if kind == "command":
        return target  # a program of the hosts' own
    message = f"{kind}: {target} lies outside of {root}, which is what is copied to the hosts"
    raise SpecError(Problem(draft.place(kind), message, "run it from a directory around it, or name that with workdir:"))


def _task_spec(draft: Draft, kind: str) -> TaskSpec:
    own = draft.given.get("tasks", {}).get(kind, {})
    defaults = draft.given.get("defaults", {})
    if kind in DATA_SERVICE:
        return TaskSpec(kind, draft.counts[kind], env=own.get("env", {}))
    if not computes(kind, draft.strategy):
        defaults = {"devices": {key: value for key, value in defaults.get("devices", {}).items() if key != "gpus"}}
    overrides = {int(index): device_keys.read(defaults, own, override) for index, override in own.get("overrides", {}).items()}
    return TaskSpec(kind, draft.counts[kind], own.get("args"), own.get("env", {}), device_keys.read(defaults, own), overrides)


def _derived_name(program: Program) -> str:
    """``train`` for ``src/train.py``, ``pkg.train`` and ``/opt/bin/train``, without what a name may not hold."""
    last = program.target.rpartition(".")[2] if program.kind == "module" else PurePosixPath(program.target).stem
    return re.sub("[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:MAX_NAME] or "run"


# --- the way back -------------------------------------------------------------------------------


def to_document(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as plain data under the keys of orch.yaml: `parse` reads it (as JSON, too) and gives the same spec."""
    document = {
        "name": spec.name,
        "strategy": spec.strategy,
        spec.program.kind: spec.program.target,
        "args": list(spec.program.args),
        "python": spec.python,
        "workdir": spec.workdir,
        "tasks": {tasks.type: _task_document(tasks) for tasks in spec.tasks},
        "defaults": {"env": dict(spec.env)},
        "serve": spec.serve,
        "timeouts": {field.name: getattr(spec.timeouts, field.name) for field in fields(Timeouts)},
        "collectives": _collectives_document(spec.collectives),
        "restart": {field.name: getattr(spec.restart, field.name) for field in fields(Restart)},
        "ports": list(spec.ports or ()),
        "backend": _backend_document(spec.backend),
    }
    given = {key: value for key, value in document.items() if value not in ("", [], {})}
    return given if spec.preload is None else {**given, "preload": list(spec.preload)}


def _collectives_document(collectives: CollectiveSettings) -> dict[str, Any]:
    """What differs from the default: under another strategy the key must not be there at all."""
    return {
        field.name: getattr(collectives, field.name)
        for field in fields(CollectiveSettings)
        if getattr(collectives, field.name) != getattr(DEFAULT_COLLECTIVES, field.name)
    }


def _backend_document(backend: BackendSpec) -> dict[str, Any]:
    if not backend.hosts:
        return {**_given_fields(backend), "type": backend.type}
    return {**_given_fields(backend), "type": backend.type, "hosts": [_given_fields(host) for host in backend.hosts]}


def _given_fields(value: Any) -> dict[str, Any]:
    """The fields that are not at their default, as plain data."""
    found = {field.name: getattr(value, field.name) for field in fields(value) if getattr(value, field.name) != field.default}
    return {name: list(item) if isinstance(item, tuple) else item for name, item in found.items()}


def _task_document(tasks: TaskSpec) -> dict[str, Any]:
    if tasks.type in DATA_SERVICE:
        return {"count": tasks.count, "env": dict(tasks.env)}
    return {
        "count": tasks.count,
        "args": None if tasks.args is None else list(tasks.args),
        "env": dict(tasks.env),
        "devices": device_keys.write(tasks.devices),
        "overrides": {str(index): {"devices": device_keys.write(devices)} for index, devices in tasks.overrides.items()},
    }
