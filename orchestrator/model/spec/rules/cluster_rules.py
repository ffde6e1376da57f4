"""The rules between the keys of a spec. A rule is a function from a draft to a complaint, or None. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worker.fast_dataclass import dataclass
from worker.protocol.task_id import DATA_SERVICE, TASK_TYPES
from worker.settings.keras_settings import LEGACY, is_legacy

from ....errors import Problem
from ... import slots, strategies
from ...strategies import Strategy
from ..document import Node, place_of
from ..findings import Findings, listed
from ..sections import backend_sections
from ..sections.backend_sections import BackendSpec
from ..sections.run_sections import PROGRAM_KINDS
from ..sections.task_sections import MAX_TASKS
from . import device_rules, tpu_rules


@dataclass(frozen=True, slots=True)
class Draft:
    """A document whose keys are checked one by one."""

    document: Node
    given: Mapping[str, Any]
    """The values of the document."""
    strategy: Strategy
    counts: Mapping[str, int]
    """The number of tasks of each type, with defaults and zeros."""
    backend: BackendSpec

    def place(self, path: str) -> str:
        return place_of(self.document, path)


def draft_of(document: Node, given: Mapping[str, Any]) -> Draft:
    """The draft of a document and its checked values."""
    asked = {kind: tasks.get("count", 1) for kind, tasks in given.get("tasks", {}).items()}
    strategy = strategies.named(given["strategy"]) if given.get("strategy") else strategies.implied(dict.fromkeys(given, 1) | asked)
    place = backend_sections.read(given.get("backend", {}))
    counts = strategy.default_counts | ({"dispatcher": 1} if asked.get("data_worker") else {}) | asked
    if "count" not in given.get("tasks", {}).get("worker", {}) and not strategy.one_process:
        free = sum(number or 1 for number in place.named_slots.values())
        counts["worker"] = max(1, free - sum(counts.values()) + counts["worker"])  # one worker for each slot that no other task uses
    return Draft(document, given, strategy, {kind: counts[kind] for kind in TASK_TYPES if kind in counts}, place)


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


def _data_service_is_whole(draft: Draft) -> Problem | None:
    dispatchers, workers = (draft.counts.get(kind, 0) for kind in DATA_SERVICE)
    if bool(dispatchers) == bool(workers):
        return None
    if workers:
        message = "tasks.dispatcher: must be 1 where there are data workers, whose work it shares out"
        return Problem(draft.place("tasks.dispatcher.count"), message, "leave it out: 1 is the default")
    message = "tasks.dispatcher: has nobody to give work to: there are no data workers"
    return Problem(draft.place("tasks.dispatcher.count"), message, "write tasks: {data_worker: 2}, which brings a dispatcher")


def _not_too_many(draft: Draft) -> Problem | None:
    if (total := sum(draft.counts.values())) > MAX_TASKS:
        return Problem(draft.place("tasks"), f"tasks: there are {total:,} in all; the limit is {MAX_TASKS:,}")
    return None


def _ports_for_all(draft: Draft) -> Problem | None:
    ports = draft.given.get("ports")
    if not draft.backend.named_slots or _enough_slots(draft):
        return None  # the number of tasks on each host is not known yet
    if not ports or ports[1] - ports[0] + 1 >= sum(draft.counts.values()):
        return None
    host, needed = _most_ports(draft)
    if ports[1] - ports[0] + 1 >= needed:
        return None
    where = f" on host {host}" if host else ""
    message = f"ports: {ports[0]}-{ports[1]} are {ports[1] - ports[0] + 1} ports; {needed} tasks{where} need one each"
    return Problem(draft.place("ports"), message, "give a wider range, or none: free ports are found")


def _most_ports(draft: Draft) -> tuple[str, int]:
    """The host that needs the most ports, and how many. The name is empty if there is only one host."""
    named = draft.backend.named_slots
    assignment = slots.assign(draft.counts, named)
    needs = {host: slots.ports_needed(ids, draft.strategy) for host, ids in assignment.items()}
    host = max(needs, key=needs.__getitem__)
    return host if len(named) > 1 else "", needs[host]


def _backend_is_whole(draft: Draft) -> Problem | None:
    given, kind = draft.given.get("backend", {}), draft.backend.type
    for key, other in backend_sections.misplaced(kind):
        if key in given:
            message = f"backend.{key}: are for backend {other}, not {kind}"
            return Problem(draft.place(f"backend.{key}"), message, f"write backend: {{type: {other}, {key}: ...}}")
    complaint = draft.backend.complaint()
    return Problem(draft.place("backend"), *complaint) if complaint else None


def _enough_slots(draft: Draft) -> Problem | None:
    problem = slots.describe_lack(sum(draft.counts.values()), draft.backend.named_slots)
    key = f"backend.{draft.backend.IMPLIED_BY}"
    return Problem(draft.place(key), f"{key}: {problem}", slots.MORE_SLOTS) if problem else None


def _one_keras(draft: Draft) -> Problem | None:
    mode, asked = draft.given.get("keras", {}).get("mode", ""), draft.given.get("defaults", {}).get("env", {})
    if mode not in ("v3", "legacy") or LEGACY not in asked or is_legacy(asked) == (mode == "legacy"):
        return None
    message = f"keras: {mode} and {LEGACY}={asked[LEGACY]} in defaults.env ask for two versions of Keras"
    return Problem(draft.place("keras.mode"), message, "say one of them")


def _prepare_is_whole(draft: Draft) -> Problem | None:
    given = draft.given.get("prepare", {})
    if not given or "run" in given:
        return None
    return Problem(draft.place("prepare"), f"prepare: {listed(given)} without a command", "write prepare: {run: ./fetch.sh}")


_COUNTS = ("strategy", *(f"tasks.{kind}.count" for kind in TASK_TYPES))
RULES: tuple[tuple[tuple[str, ...], Callable[[Draft], Problem | None]], ...] = (
    (PROGRAM_KINDS, _one_program),
    (_COUNTS, _data_service_is_whole),
    (_COUNTS, _not_too_many),
    ((*_COUNTS, "ports", "backend"), _ports_for_all),
    (("backend",), _backend_is_whole),
    ((*_COUNTS, "backend"), _enough_slots),
    (("keras.mode", "defaults.env"), _one_keras),
    (("prepare.run",), _prepare_is_whole),
)
"""Each rule with the paths that it reads. A rule does not run if one of these values is wrong."""


def complaints(draft: Draft, findings: Findings) -> Iterator[Problem]:
    """What is wrong with values that are right one by one."""
    for reads, rule in RULES:
        paths = (path for read in reads for path in (backend_sections.paths() if read == "backend" else (read,)))
        if findings.sound(paths) and (problem := rule(draft)):
            yield problem
    for path, message, hint in _strategy_complaints(draft, findings):
        yield Problem(draft.place(path), message, hint)
    kinds = (kind for kind in draft.counts if kind not in DATA_SERVICE and findings.sound([f"tasks.{kind}.count"]))
    counts = {kind: draft.counts[kind] for kind in kinds}
    for path, message, hint in device_rules.complaints(draft.given, counts, "command" in draft.given):
        yield Problem(draft.place(path), message, hint)
    for path, message, hint in tpu_rules.complaints(draft.given.get("tpu", {}), findings.sound):
        yield Problem(draft.place(path), message, hint)


def _strategy_complaints(draft: Draft, findings: Findings) -> Iterator[strategies.Complaint]:
    if findings.sound(_COUNTS):
        yield from draft.strategy.complaints(draft.counts)
    for section, said in draft.given.items():
        if not said or not findings.sound((*_COUNTS, *PROGRAM_KINDS, section)):
            continue
        if complaint := draft.strategy.refuses(section):
            yield complaint
        elif "command" in draft.given and section in draft.strategy.sections_inside:
            message = f"{section}: would be set inside a Python program, and this cluster runs a command"
            yield section, message, "run the script itself: script: train.py, or a module"
