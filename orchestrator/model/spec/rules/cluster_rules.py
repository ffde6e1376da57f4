"""The rules between the keys of a spec. A rule is a function from a draft to its complaints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from worker.protocol.task_id import DATA_SERVICE, TASK_TYPES
from worker.settings.keras_settings import LEGACY, is_legacy

from ....errors import Problem
from ... import slots
from ...strategies import Complaint
from ..findings import listed
from ..sections import backend_sections
from ..sections.run_sections import PROGRAM_KINDS
from ..sections.task_sections import MAX_TASKS
from . import device_rules, tpu_rules
from .draft import Draft


def _one_program(draft: Draft) -> Iterator[Complaint]:
    kinds = [kind for kind in PROGRAM_KINDS if kind in draft.given]
    if not kinds:
        yield "", "there is nothing to run", f"give one of {listed(PROGRAM_KINDS, 'or')}, such as script: train.py"
    elif len(kinds) > 1:
        first = draft.place(kinds[0])
        yield kinds[1], f"{listed(kinds)} are given; only one can run", f"{kinds[0]} is at {first}" if first else ""


def _data_service_is_whole(draft: Draft) -> Iterator[Complaint]:
    dispatchers, workers = (draft.counts.get(kind, 0) for kind in DATA_SERVICE)
    if workers and not dispatchers:
        message = "tasks.dispatcher: must be 1 where there are data workers, whose work it shares out"
        yield "tasks.dispatcher.count", message, "leave it out: 1 is the default"
    elif dispatchers and not workers:
        message = "tasks.dispatcher: has nobody to give work to: there are no data workers"
        yield "tasks.dispatcher.count", message, "write tasks: {data_worker: 2}, which brings a dispatcher"


def _not_too_many(draft: Draft) -> Iterator[Complaint]:
    if (total := sum(draft.counts.values())) > MAX_TASKS:
        yield "tasks", f"tasks: there are {total:,} in all; the limit is {MAX_TASKS:,}", ""


def _ports_for_all(draft: Draft) -> Iterator[Complaint]:
    ports, named = draft.given.get("ports"), draft.backend.named_slots
    if not ports or not named or slots.describe_lack(sum(draft.counts.values()), named):
        return  # without hosts with enough slots, the number of tasks on each host is not known yet
    needs = {host: slots.ports_needed(ids, draft.strategy) for host, ids in slots.assign(draft.counts, named).items()}
    host, count = max(needs, key=needs.__getitem__), ports[1] - ports[0] + 1
    if needs[host] > count:
        where = f" on host {host}" if len(needs) > 1 else ""
        message = f"ports: {ports[0]}-{ports[1]} are {count} ports; {needs[host]} tasks{where} need one each"
        yield "ports", message, "give a wider range, or none: free ports are found"


def _backend_is_whole(draft: Draft) -> Iterator[Complaint]:
    given, kind = draft.given.get("backend", {}), draft.backend.type
    for key, other in backend_sections.misplaced(kind):
        if key in given:
            message = f"backend.{key}: are for backend {other}, not {kind}"
            yield f"backend.{key}", message, f"write backend: {{type: {other}, {key}: ...}}"
            return
    if complaint := draft.backend.complaint():
        yield "backend", *complaint


def _enough_slots(draft: Draft) -> Iterator[Complaint]:
    if problem := slots.describe_lack(sum(draft.counts.values()), draft.backend.named_slots):
        key = f"backend.{draft.backend.IMPLIED_BY}"
        yield key, f"{key}: {problem}", slots.MORE_SLOTS


def _one_keras(draft: Draft) -> Iterator[Complaint]:
    mode, asked = draft.given.get("keras", {}).get("mode", ""), draft.given.get("defaults", {}).get("env", {})
    if mode in ("v3", "legacy") and LEGACY in asked and is_legacy(asked) != (mode == "legacy"):
        message = f"keras: {mode} and {LEGACY}={asked[LEGACY]} in defaults.env ask for two versions of Keras"
        yield "keras.mode", message, "say one of them"


def _prepare_is_whole(draft: Draft) -> Iterator[Complaint]:
    given = draft.given.get("prepare", {})
    if given and "run" not in given:
        yield "prepare", f"prepare: {listed(given)} without a command", "write prepare: {run: ./fetch.sh}"


def _counts_fit_the_strategy(draft: Draft) -> Iterable[Complaint]:
    return draft.strategy.complaints(draft.counts)


def _sections_have_an_effect(draft: Draft) -> Iterator[Complaint]:
    for section, said in draft.given.items():
        if not said or not draft.sound(section):
            continue
        if complaint := draft.strategy.refuses(section):
            yield complaint
        elif "command" in draft.given and section in draft.strategy.sections_inside:
            yield section, f"{section}: {device_rules.INSIDE}", device_rules.RUN_PYTHON


_COUNTS = ("strategy", *(f"tasks.{kind}.count" for kind in TASK_TYPES))
RULES: tuple[tuple[tuple[str, ...], Callable[[Draft], Iterable[Complaint]]], ...] = (
    (PROGRAM_KINDS, _one_program),
    (_COUNTS, _data_service_is_whole),
    (_COUNTS, _not_too_many),
    ((*_COUNTS, "ports", "backend.*"), _ports_for_all),
    (("backend.*",), _backend_is_whole),
    ((*_COUNTS, "backend.*"), _enough_slots),
    (("keras.mode", "defaults.env"), _one_keras),
    (("prepare.run",), _prepare_is_whole),
    (_COUNTS, _counts_fit_the_strategy),
    ((*_COUNTS, *PROGRAM_KINDS), _sections_have_an_effect),
    ((), device_rules.complaints),
    ((), tpu_rules.complaints),
)
"""Each rule with the paths that it reads. A rule does not run if one of these values is wrong."""


def problems(draft: Draft) -> Iterator[Problem]:
    """What is wrong with values that are right one by one."""
    for reads, rule in RULES:
        if draft.sound(*reads):
            for path, message, hint in rule(draft):
                yield Problem(draft.place(path), message, hint)
