"""The rules between the keys of a spec. A rule is a function from a draft to its complaints. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator

from worker.settings.keras_settings import LEGACY, is_legacy

from ...errors import Problem
from ..strategies import Complaint, which
from . import backend_sections, device_rules, tpu_rules
from .draft import Draft
from .findings import listed
from .run_sections import PROGRAM_KINDS


def _one_program(draft: Draft) -> Iterator[Complaint]:
    kinds = [kind for kind in PROGRAM_KINDS if kind in draft.given]
    if not kinds:
        yield "", "there is nothing to run", f"give one of {listed(PROGRAM_KINDS[:3], 'or')}, such as script: train.py"
    elif len(kinds) > 1:
        first = draft.place(kinds[0])
        yield kinds[1], f"{listed(kinds)} are given; only one can run", f"keep one of them; {kinds[0]} is at {first}" if first else ""


def _backend_is_whole(draft: Draft) -> Iterator[Complaint]:
    given, kind = draft.given.get("backend", {}), draft.backend.type
    foreign: dict[tuple[str, ...], list[str]] = {}
    for key, others in backend_sections.misplaced(kind):
        if key in given:
            foreign.setdefault(others, []).append(key)
    for others, keys in foreign.items():
        yield _foreign_keys(draft, others, keys)
    if not foreign and (complaint := draft.backend.complaint()):
        yield "backend", *complaint


def _foreign_keys(draft: Draft, others: tuple[str, ...], keys: list[str]) -> Complaint:
    """The complaint about keys that only the backends in `others` have."""
    paths = [f"backend.{key}" for key in keys]
    places = [draft.place(path) for path in paths]
    named = all(re.match(r"-(?!-set$)|ORCH_", place) for place in places)
    verb = "belongs" if len(keys) == 1 else "belong"
    default = next(iter(backend_sections.BACKENDS))
    where = draft.backend.type if draft.backend.type == default else f"on {draft.backend.type}"
    said = f"{verb} to backend {listed(others, 'or')}, and this run is {where}"
    if named:
        limit = ", or --timeout, which limits every run" if keys == ["time"] else ""
        other = f"{limit}; --backend {draft.backend.type} leaves the variable out" if places[0].startswith("ORCH_") else limit
        here = [name for name in others if not backend_sections.BACKENDS[name].IS_EVERYWHERE]
        fix = f"add --backend {listed(here, 'or')}{', or --join' if here != [*others] else ''}{other}"
        if draft.backend.type != default:  # the user has chosen it
            fix = f"leave {listed(places)} out, or choose --backend {listed(here, 'or')}"
        return " ".join(paths), said, fix
    return paths[0], f"{listed(paths)} {said}", f"write backend: {{type: {others[0]}, {keys[0]}: ...}}, or add --backend {others[0]}"


def _network_can_be_private(draft: Draft) -> Iterator[Complaint]:
    if draft.given.get("network") == "private" and not draft.backend.HAS_PRIVATE_NETWORK:
        message = f"must be host: the tasks of backend {draft.backend.type} need the network between the hosts"
        yield "network", message, "leave it out, and keep the hosts behind a firewall; or run on this machine alone"


def _tensorboard_can_be_reached(draft: Draft) -> Iterator[Complaint]:
    if draft.given.get("tensorboard") and draft.given.get("network") == "private":
        message = "tensorboard: with network: private no browser reaches it"
        yield "tensorboard", message, "start TensorBoard yourself: tensorboard --logdir DIR"


def _one_keras(draft: Draft) -> Iterator[Complaint]:
    mode, asked = draft.given.get("keras", {}).get("mode", ""), draft.given.get("defaults", {}).get("env", {})
    if mode in ("v3", "legacy") and LEGACY in asked and is_legacy(asked) != (mode == "legacy"):
        message = f"keras: {mode} and {LEGACY}={asked[LEGACY]} in defaults.env ask for two versions of Keras"
        yield "keras.mode", message, "say one of them"
    if mode == "off" and draft.given["keras"].get("exact"):
        yield "keras.exact", "keras.exact: with mode off, orch changes nothing in Keras", "leave out one of them"


def _prepare_is_whole(draft: Draft) -> Iterator[Complaint]:
    given = draft.given.get("prepare", {})
    if given and "run" not in given:
        yield "prepare", f"prepare: {listed(given)} without a command", "write prepare: {run: ./fetch.sh}"


def _sections_have_an_effect(draft: Draft) -> Iterator[Complaint]:
    for section, said in draft.given.items():
        if said and (complaint := draft.strategy.refuses(section)):
            yield complaint
        elif said and "command" in draft.given and section in draft.strategy.sections_inside:
            yield section, f"{section}: {device_rules.INSIDE}", device_rules.RUN_PYTHON


def _saves_before_the_end(draft: Draft) -> Iterator[Complaint]:
    given = draft.given.get("timeouts", {})
    before_s, run_s = given.get("save_before_s"), given.get("run_s")
    if before_s is None:
        return
    if run_s is None and not draft.backend.INSIDE:
        message = f"save_before_s: a run on backend {draft.backend.type} without run_s (--timeout) has no end that is known"
        yield "timeouts.save_before_s", message, "give --timeout, too"
    elif run_s is not None and before_s >= run_s:
        yield "timeouts.save_before_s", f"save_before_s is {before_s:g} s, and the run takes {run_s:g} s at most", "make it shorter"


def _elastic(draft: Draft) -> Iterator[Complaint]:
    least, most = draft.least_workers, draft.counts.get("worker", 0)
    if not least:
        return
    where, span = "tasks.worker", f"{least}:{most} workers"
    if not draft.strategy.role("worker").synchronous:
        able = which(lambda row: "worker" in row.roles and row.roles["worker"].synchronous)
        yield where, f"{span}: only {able} continues with fewer workers, not {draft.strategy.name}", "write one number"
    if not draft.given.get("restart", {}).get("max"):
        yield where, f"{span}: without restarts no attempt follows the loss of a host", "give --max-restarts, too"
    given = draft.given.get("input", {})
    if given.get("auto_shard") not in (None, "auto", "data"):
        message = f"{span}: under auto_shard: {given['auto_shard']} another number of workers reads other global batches"
        yield "input.auto_shard", message, "write auto_shard: data"
    batch = given.get("global_batch_size")
    if batch and (batch % most or not any(batch % count == 0 for count in range(least, most))):
        message = f"{span}: a global batch of {batch} cannot be divided evenly by {most if batch % most else f'{least} to {most - 1}'}"
        yield where, message, "choose numbers that divide the batch"


_COUNTS = ("strategy", "tasks", "backend")
RULES: tuple[tuple[tuple[str, ...], Callable[[Draft], Iterable[Complaint]]], ...] = (
    (PROGRAM_KINDS, _one_program),
    (("backend",), _backend_is_whole),
    (("network", "backend"), _network_can_be_private),
    (("tensorboard", "network"), _tensorboard_can_be_reached),
    (("keras", "defaults"), _one_keras),
    (("prepare",), _prepare_is_whole),
    (("timeouts", "backend"), _saves_before_the_end),
    ((*_COUNTS, "restart", "input"), _elastic),
    (_COUNTS, lambda draft: draft.strategy.complaints(draft.counts)),
    ((*_COUNTS, *PROGRAM_KINDS), _sections_have_an_effect),
    (("tasks",), device_rules.complaints),
    (("tpu",), tpu_rules.complaints),
)
"""Each rule with the keys of the document that it reads. A rule does not run if there is a mistake in one of these."""


def problems(draft: Draft, spoiled: Container[str]) -> Iterator[Problem]:
    """Return what is wrong with values that are right one by one. `spoiled`: the keys of the document that have a mistake."""
    for reads, rule in RULES:
        if not any(key in spoiled for key in reads):
            for path, message, hint in rule(draft):
                yield Problem(draft.place(path), message, hint)
