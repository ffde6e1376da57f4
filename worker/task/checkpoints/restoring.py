"""Finds which save a training begins with: all workers take the same one, and its bytes are those that were written."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ...formats import saves
from ...formats.saves import Save
from ...formats.tensor_file import DamagedError, Tensor
from ...values.words import count_of, few
from ..input import given, shuffle_order
from ..patches import refusal
from ..patches.import_hooks import print_once
from . import snapshots, world_facts
from .storage import files_of

Series = Any
_OF_EPOCH = "the metrics of the resumed epoch are not exact: they count other batches than without the restart"


@dataclasses.dataclass(frozen=True)
class FoundSave:
    save: Save
    tensors: dict[str, Tensor]
    note: dict[str, Any]
    """What the file of this worker says besides its tensors."""
    files_read: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        return self.save.manifest or {}


def choose(series: Series) -> FoundSave | None:
    """The newest save that is whole in the eyes of all workers. They take the older one until they agree."""
    check_resumed(series)
    if series.place.task.attempt > 1:  # each agent has to write what the attempt before has left in memory
        snapshots.wait_until_written()
        given.of_all(series.strategy, 0)
    found, damaged = _newest(series, None, [])
    while True:
        answers = given.of_all(series.strategy, _number(found), int(_sees_saves(series)))
        told = [number for number, _ in answers]
        if min(told) == max(told):
            break
        if min(told) < 0:
            blind = [worker for worker, (number, sees) in zip(series.workers, answers, strict=True) if number < 0 and not sees]
            if not blind:  # what a worker needs is damaged in each save
                found = None
                break
            raise refusal(
                RuntimeError(
                    f"{blind[0]} finds no checkpoint in {series.place.base}, where other workers find some. "
                    "fix: set checkpoints.dir to a directory that all hosts share"
                )
            )
        if _number(found) > min(told):
            found, damaged = _newest(series, min(told), damaged)
    for name, reason in damaged:
        takes = "nothing older is whole: the training begins again" if found is None else f"{found.save.name} is used"
        series.tell(f"{series.name}/{name} is damaged and stays aside: {reason}; {takes}")
    if series.is_chief:
        _clear(series, {name for name, _ in damaged})
    return found


def check_resumed(series: Series) -> None:
    """Raise RuntimeError if this host sees no save of the run to continue: the training must not begin again without a warning."""
    bases = series.place.resume
    if bases and not any(files_of(base).names(base) for base in bases):
        raise refusal(
            RuntimeError(
                f"{series.place.task.task} sees no checkpoint in {bases[0]}, which the run continues: all hosts must see this directory"
            )
        )


def _sees_saves(series: Series) -> bool:
    """True if this worker sees any manifest of the series, also of a damaged save."""
    return any(
        saves.MANIFEST in files_of(base).names(save.directory)
        for base in series.bases
        for save in saves.list_saves(files_of(base), base, series.name)
    )


def _number(found: FoundSave | None) -> int:
    """A number that orders the saves of a series."""
    kinds = ("", "epoch", "final")
    return -1 if found is None else found.save.step * len(kinds) + kinds.index(found.document["kind"])


def _newest(series: Series, most: int | None, damaged: list[tuple[str, str]]) -> tuple[FoundSave | None, list[tuple[str, str]]]:
    """The newest save with at most this number; of this run, or else of the runs that it continues."""
    for base in series.bases:
        files = files_of(base)
        for save in saves.list_saves(files, base, series.name):
            if save.manifest is None:
                if saves.MANIFEST in files.names(save.directory):
                    damaged = _with(damaged, save.name, save.problem)
                continue
            try:
                found = _read(series, save)
            except DamagedError as error:
                damaged = _with(damaged, save.name, str(error))
                continue
            if most is None or _number(found) <= most:
                return found, damaged
    return None, damaged


def _with(damaged: list[tuple[str, str]], name: str, reason: str) -> list[tuple[str, str]]:
    return damaged if any(each == name for each, _ in damaged) else [*damaged, (name, reason)]


def _read(series: Series, save: Save) -> FoundSave:
    """Read what this worker needs, and check it. The chief checks all files. Raises `DamagedError`."""
    assert save.manifest is not None
    own = saves.file_of(series.place.task.task)
    if own not in save.manifest["files"]:  # the workers were others: what the chief had of its own
        own = saves.file_of(save.manifest["by"])
    files = files_of(save.directory)
    tensors, _ = saves.read_file(files, save, saves.MODEL)
    of_own, note = saves.read_file(files, save, own)
    if series.is_chief:
        for name in save.manifest["files"].keys() - {saves.MODEL, own}:
            saves.read_file(files, save, name, keep=False)
    return FoundSave(save, {**tensors, **of_own}, note, (saves.MODEL, own))


def _clear(series: Series, damaged: set[str]) -> None:
    """Remove what was not finished, and move damaged saves aside: their steps are saved again. Of this run alone."""
    files, base = series.files, series.bases[0]
    for save in list(saves.list_saves(files, base, series.name)):
        if save.name in damaged:
            number = 1
            while f"{save.name}{saves.DAMAGED}-{number}" in files.names(saves.join(base, series.name)):
                number += 1
            files.move(save.directory, f"{save.directory}{saves.DAMAGED}-{number}")
        elif save.manifest is None:
            files.remove(save.directory)
    for name in files.names(saves.join(base, series.name)):
        if name.startswith(f"{saves.LEFT}-"):
            files.remove(saves.join(base, series.name, name))


def tell_of_other_world(series: Series, save: Save) -> None:
    """Say what makes the numbers of the rest other ones than those of a training without a restart."""
    manifest = save.manifest or {}
    if lost := manifest.get("lost"):
        print_once(
            f"checkpoints: {few(lost)} is lost with its host: its moving statistics and metrics become those of {manifest['by']}; "
            "all weights are exact"
        )
    before, now = manifest["world"], world_facts.world(series.strategy, series.workers)
    if before["workers"] != now["workers"] or before["replicas"] != now["replicas"]:
        counts = (
            f"checkpoints: {save.name} was saved by {count_of(len(before['workers']), 'worker')} with {before['replicas']} replicas, and "
            f"now there are {len(now['workers'])} with {now['replicas']}"
        )
        if os.environ.get("ORCH_ELASTIC"):
            print_once(
                f"{counts}: the global batches are the same, in the same order, where these numbers divide them and orch divides the input"
                + (f"; {_OF_EPOCH}" if manifest.get("step_in_epoch") else "")
            )
        else:
            print_once(f"{counts}: the workers divide the rest of the epoch otherwise, so some elements may come twice and others never")
    else:
        old, new = {**before, **manifest["versions"]}, {**now, **world_facts.versions()}
        other = [f"{name} was {old.get(name)} and is {new.get(name)}" for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
        if other:
            print_once(f"checkpoints: the numbers may differ from those of a training without a restart: {'; '.join(sorted(other))}")
    if manifest["order"] != shuffle_order.word():
        print_once(
            f"checkpoints: {save.name} has another order of shuffles without a seed, so elements may come twice or never. "
            "fix: orch up --resume RUN"
        )


def lost(series: Series, step: int) -> str:
    """Return what the last steps before a restart were, in words. `step`: the one that the training continues at."""
    known = [saves.reached(files_of(base), base, series.name) for base in series.bases]
    reached = next((each for each in known if each is not None), None)
    if reached is None:
        return "the last step before is not known"
    if reached <= step:
        return "no step is lost"
    again = f"{count_of(reached - step, 'step')} {'is' if reached - step == 1 else 'are'} done again"
    is_coordinated = type(series.strategy).__name__.startswith("ParameterServerStrategy")  # the workers finish steps in their own order
    return f"the training had {'scheduled' if is_coordinated else 'finished'} step {reached}: {again}"


def attempt_of(manifest: dict[str, Any]) -> str:
    """Return which attempt has made a save, in words."""
    run = manifest["run"]
    of_run = f" of {run}" if run and run != os.environ.get("ORCH_RUN_ID") else ""
    how = " in memory" if manifest.get("how") == "snapshot" else ""
    return f"attempt {manifest['attempt']}{of_run}{how}"
