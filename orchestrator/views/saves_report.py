"""`orch checkpoints`: the saves of a directory, how each came about, and which would be restored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from worker.formats import saves
from worker.formats.saves import LOCAL, UNFINISHED, Save
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..record.text.format import aligned, describe_seconds
from ..record.text.lines import clean

__all__ = ["UNFINISHED", "SaveRow", "SeriesRow", "read", "to_text"]

_HOW = {"snapshot": "snapshot in memory"}
_KINDS = {"": "steps", "epoch": "end of an epoch", "final": "end of the training"}


@dataclass(frozen=True, slots=True)
class SaveRow:
    """One save. `problem` empty: it is whole, as far as it was looked at."""

    series: str
    name: str
    path: str
    step: int
    epoch: int | None
    step_in_epoch: int | None
    saved_at: float | None
    age_s: float | None
    bytes: int
    made_by: str
    problem: str
    is_next: bool
    """A restart would begin with this save."""
    sha256: str
    """Of all tensors; empty without a manifest."""


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """The saves of one training, the newest first. The name begins with that of a task that trains alone: ``worker-0/fit-1``."""

    name: str
    reached: int | None
    """The last finished step; None: unknown."""
    saves: tuple[SaveRow, ...]


def read(base: str, *, verify: bool) -> list[SeriesRow]:
    """The saves of a directory of this host. `verify`: read all tensors, and compare their checksums."""
    homes = saves.homes_of(LOCAL, base)
    return [_read_series(base, home, series, verify=verify) for home in homes for series in saves.series_of(LOCAL, home)]


def _read_series(base: str, home: str, series: str, *, verify: bool) -> SeriesRow:
    """The saves of one training. `home`: the directory of the series; below `base`, that of a task that trains alone."""
    label = series if home == base else f"{os.path.basename(home)}/{series}"
    rows: list[SaveRow] = []
    for save in saves.list_saves(LOCAL, home, series):
        problem = saves.check(LOCAL, save) if verify else save.problem
        rows.append(_row(label, save, problem, is_next=not problem and not any(row.is_next for row in rows)))
    aside = sorted(name for name in LOCAL.names(saves.join(home, series)) if saves.DAMAGED in name)
    for name in aside:
        save = Save(saves.join(home, series, name), series, name, None)
        rows.append(_row(label, save, "damaged, and moved aside", is_next=False))
    # The last save of a training comes after its last word of how far it is.
    steps = [saves.reached(LOCAL, home, series), *(row.step for row in rows if not row.problem)]
    return SeriesRow(label, max((step for step in steps if step is not None), default=None), tuple(rows))


def _row(label: str, save: Save, problem: str, *, is_next: bool) -> SaveRow:
    manifest: dict[str, Any] = save.manifest or {}
    made = ""
    if manifest:
        of_run = f" of {manifest['run']}" if manifest.get("run") else ""
        how = _HOW.get(str(manifest.get("how", "")), _KINDS.get(str(manifest.get("kind", "")), "?"))
        made = f"{how}, attempt {manifest.get('attempt', '?')}{of_run}"
    at = manifest.get("at")
    return SaveRow(
        *(label, save.name, save.directory, save.step, _whole(manifest.get("epoch")), _whole(manifest.get("step_in_epoch")), at),
        age_s=saves.age(manifest) if manifest else None,
        bytes=save.size,
        made_by=made,
        problem=problem,
        is_next=is_next,
        sha256=str(manifest.get("sha256", "")),
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def to_text(base: str, found: list[SeriesRow], *, verified: bool) -> Iterator[str]:
    """The saves as a table for each training."""
    if not any(series.saves for series in found):
        yield f"there is no checkpoint in {base}: orch up --checkpoint saves a fit, worker.checkpoints your own loop (docs/resume.md)"
    for series in found:
        if not series.saves and series.reached is None:
            continue
        reached = "" if series.reached is None else f": steps up to {series.reached} are finished"
        yield f"{series.name}{reached}"
        rows = [("", "STEP", "EPOCH", "AGE", "SIZE", "SAVED AT")]
        for row in series.saves:
            if row.epoch is None:
                rows.append(("", row.name, "", "", "", f"not restored: {clean(row.problem)}"))
                continue
            place = f"{row.epoch + 1}, step {row.step_in_epoch}" if row.step_in_epoch else f"{row.epoch}"  # the end of that one
            state = f"; DAMAGED: {clean(row.problem)}" if row.problem else "; whole" if verified else ""
            text = f"{clean(row.made_by)}{state}"
            rows.append(("->" if row.is_next else "", str(row.step), place, describe_seconds(row.age_s or 0), bytes_of(row.bytes), text))
        yield from aligned(rows)
        if not any(row.is_next for row in series.saves):
            yield "no checkpoint of this training would be restored"
    whole = [row for series in found for row in series.saves if row.is_next]
    if whole:
        yield f"-> would be restored; {count_of(sum(len(series.saves) for series in found), 'save')} in {base}"
