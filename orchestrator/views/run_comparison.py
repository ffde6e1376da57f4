"""Compares two runs by their records: what was different at the start, where their numbers part, and what came out."""

from __future__ import annotations

import contextlib
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worker.formats import saves
from worker.formats.saves import LOCAL, Save
from worker.formats.tensor_file import DamagedError, Tensor, size_of
from worker.protocol.messages import HostReady
from worker.values.fast_dataclass import dataclass
from worker.values.redact import hide_secrets, redact_value
from worker.values.words import count_of, few

from ..model.settings.parse import to_document
from ..record import saves_of_run
from ..record.run_directory import RunDir
from ..record.text.event_messages import describe_outcome
from ..record.text.format import aligned, describe_seconds
from ..record.text.lines import clean
from . import goodput
from .run_story import Reported, Story, through_epochs
from .story_gather import gather

ROUNDING = 1e-4
"""The share by which two reported numbers may differ: sums in another order differ by less in the first steps of a training."""
NONE = "-"
"""What a run shows that has no such value."""
_PLACES = {"step", "epoch", "steps_per_s"}
"""The names of reports that say where a training is, and how fast."""
_FORMATS: dict[str, Any] = {"F32": "f", "F64": "d", "I32": "i", "I64": "q", "U8": "B", "I8": "b"}
"""The types of tensors whose elements `memoryview` reads, as it names them."""
_MOST_BYTES = 1 << 28
"""Of a larger variable, no share is shown: a look at it would take long, and the header of its file says how large it is."""
_PIECE = 1 << 16
"""So many elements become objects of Python at once."""


@dataclass(frozen=True, slots=True)
class Parted:
    """The first place at which a number of two runs differs by more than rounding."""

    where: str
    """The step, and of a save its series."""
    name: str
    one: float | None
    """None: of a save, whose variables have many numbers."""
    other: float | None
    share: float | None
    """The difference as a share of the number, or of the variable's norm; None: it has none."""
    also: int = 0
    """How many further variables of the save differ."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs side by side. A row has a name and the two texts."""

    runs: tuple[str, str]
    start: Sequence[tuple[str, str, str]]
    """What differs in the settings, the code, the versions and the cluster."""
    steps: int
    """How many steps both runs have reported, with a number of the same name."""
    reported: Parted | None
    saves: int
    """How many saves both runs have."""
    saved: Parted | None
    end: Sequence[tuple[str, str, str]]

    @property
    def parts(self) -> bool:
        """True if a number of a report or of a save differs."""
        return self.reported is not None or self.saved is not None


def compare(one: RunDir, other: RunDir) -> RunComparison:
    """Compare two runs, as far as they are recorded. Raises `OrchError` for files that cannot be read."""
    stories = (gather(one), gather(other))
    mine, theirs = (_by_step(story) for story in stories)
    steps = [step for step in sorted(mine.keys() & theirs.keys()) if (mine[step].keys() & theirs[step].keys()) - _PLACES]
    pairs = list(_common_saves(one, other))
    start = _rows(_start(one, stories[0]), _start(other, stories[1]))
    return RunComparison(
        (one.run_id, other.run_id),
        [row for row in start if row[1] != row[2]],
        len(steps),
        _first_parted(steps, mine, theirs),
        len(pairs),
        next(filter(None, itertools.starmap(_parted_save, pairs)), None),
        _rows(_end(stories[0], mine), _end(stories[1], theirs)),
    )


def _rows(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(name, one.get(name, NONE), other.get(name, NONE)) for name in dict.fromkeys((*one, *other))]


# --- the start ------------------------------------------------------------------------------------


def _start(run: RunDir, story: Story) -> dict[str, str]:
    """Return the settings with which a run was started, by name."""
    spec = redact_value(to_document(run.read_spec()))
    args = map(str, spec.pop("args", []))
    if "call" in spec:  # thousands of characters
        spec["call"] = f"{zlib.crc32(str(spec['call']).encode()):08x}"
    found = {name: value for name, value in _flat(spec) if name != "name"} | {"args": " ".join(args)}
    ready = list({event.host: event for event in story.happened if isinstance(event, HostReady)}.values())
    tasks: dict[str, int] = {}
    for task in story.cluster.tasks.values():
        tasks[task.type] = tasks.get(task.type, 0) + 1
    found |= {
        "tasks in the end": ", ".join(count_of(number, kind) for kind, number in tasks.items()),
        "hosts": _all(ready, "host"),
        "cores": _all(ready, "cores"),
        "GPUs": str(sum(len(host.gpus) for host in ready)),
        "Python": _all(ready, "python_version"),
        "TensorFlow": _all(ready, "tensorflow"),
        "Keras": _all(ready, "keras"),
        **{f"code of {path}": digest for host in reversed(ready) for path, digest in host.code.items()},
    }
    return {name: hide_secrets(clean(value)) for name, value in found.items() if value}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The settings below a value, each with its keys."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value)


def _all(ready: Sequence[HostReady], field: str) -> str:
    return few(list(dict.fromkeys(str(getattr(host, field)) for host in ready)))


# --- the numbers ----------------------------------------------------------------------------------


def _by_step(story: Story) -> dict[float, Mapping[str, float]]:
    """Return what the first task with reports has said of each step; a step that was done again counts as it was the last time."""
    reports = through_epochs(story.reports)
    told: Sequence[Reported] = next((reports[task] for task in story.cluster.tasks if reports.get(task)), ())
    return {one.values["step"]: {**one.values, **one.not_finite} for one in told if "step" in one.values}


def _first_parted(
    steps: Sequence[float], one: Mapping[float, Mapping[str, float]], other: Mapping[float, Mapping[str, float]]
) -> Parted | None:
    for step in steps:
        for name in one[step]:
            if name in _PLACES or name not in other[step]:
                continue
            mine, theirs = one[step][name], other[step][name]
            is_same = mine == theirs or (math.isnan(mine) and math.isnan(theirs))
            if not is_same and not math.isclose(mine, theirs, rel_tol=ROUNDING):
                share = abs(mine - theirs) / max(abs(mine), abs(theirs))
                return Parted(f"step {step:g}", name, mine, theirs, share if math.isfinite(share) else None)
    return None


def _common_saves(one: RunDir, other: RunDir) -> Iterator[tuple[Save, Save]]:
    """The saves of the same step of the same training in both runs, the earliest first. Remote saves are not read."""
    found: list[dict[tuple[str, str], Save]] = []
    for run in (one, other):
        base = saves_of_run.directory(run)
        homes = [] if saves_of_run.is_remote(base) else saves.homes_of(LOCAL, base)
        each = (save for home in homes for series in saves.series_of(LOCAL, home) for save in saves.list_saves(LOCAL, home, series))
        found.append({(save.series, save.name): save for save in each if save.manifest is not None})
    for key in sorted(found[0].keys() & found[1].keys(), key=lambda key: (found[0][key].step, key)):
        yield found[0][key], found[1][key]


def _parted_save(one: Save, other: Save) -> Parted | None:
    """The first variable of two saves that differs, by the checksums of the manifests; only this variable is read.

    A file of one save alone, of a worker that the other run has not, is left out: what all workers have alike is in one file.
    """
    mine, theirs = ({name: each["tensors"] for name, each in (save.manifest or {})["files"].items()} for save in (one, other))
    files = sorted({saves.MODEL, *(mine.keys() & theirs.keys())}, key=lambda file: (file != saves.MODEL, file))
    both = [(file, mine.get(file, {}), theirs.get(file, {})) for file in files]
    names = [(file, name) for file, here, there in both for name in {**here, **there} if here.get(name) != there.get(name)]
    if not names:
        return None
    (file, name), share = names[0], None
    # What is damaged is for orch checkpoints --verify to tell. A size or type that lies is of a save that orch has not written.
    with contextlib.suppress(DamagedError, ArithmeticError, LookupError, TypeError, ValueError):
        if size_of(mine[file][name]["dtype"], mine[file][name]["shape"]) <= _MOST_BYTES:
            share = _share(*(saves.read_file(LOCAL, save, file, only=name)[0].get(name) for save in (one, other)))
    shown = name if file == saves.MODEL else f"{name} of {file.removesuffix('.safetensors')}"
    return Parted(f"step {one.step} of {clean(one.series)}", clean(shown), None, None, share, len(names) - 1)


def _share(one: Tensor | None, other: Tensor | None) -> float | None:
    """The norm of the difference of two tensors as a share of the norm of the first; None: they cannot be compared."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape) or one.dtype not in _FORMATS:
        return None
    mine, theirs = (memoryview(each.data).cast(_FORMATS[each.dtype]) for each in (one, other))
    pieces = [slice(at, at + _PIECE) for at in range(0, len(mine), _PIECE)]
    difference = math.hypot(*(math.dist(mine[piece], theirs[piece]) for piece in pieces))
    norm = math.hypot(*(math.dist(mine[piece], bytes(len(mine[piece]))) for piece in pieces))
    return difference / norm if norm and math.isfinite(norm) and math.isfinite(difference) else None


# --- the end --------------------------------------------------------------------------------------


def _end(story: Story, reports: Mapping[float, Mapping[str, float]]) -> dict[str, str]:
    """Return the result: the end, the time, the speed, and the last numbers."""
    verdict = story.cluster.verdict
    ended = "was cut off" if story.is_cut else "goes on" if verdict is None else describe_outcome(verdict.outcome)
    found = {"end": ended, "time": describe_seconds(story.seconds), "goodput": goodput.measure(story).text}
    found["restarts"] = str(len(story.cluster.past))
    if reports:
        last = reports[max(reports)]
        found |= {"steps": f"{max(reports):g}", **({"steps a second": f"{last['steps_per_s']:.3g}"} if "steps_per_s" in last else {})}
        found |= {clean(name): f"{value:.6g}" for name, value in last.items() if name not in _PLACES}
    return found


def to_text(found: RunComparison) -> Iterator[str]:
    """The lines for a terminal."""
    if found.start:
        yield from aligned([("AT THE START", *found.runs), *found.start])
    else:
        yield "the two runs were started alike: settings, code, versions and hosts"
    yield ""
    if found.reported is not None:
        one = found.reported
        yield f"the reports part at {one.where}: {clean(one.name)} is {one.one:.6g} and {one.other:.6g}{_percent(one.share)}"
    elif found.steps:
        yield f"the reports are the same: {count_of(found.steps, 'step')} that both have reported differ by rounding at most"
    else:
        yield "the reports cannot be compared: there is no step that both have reported"
    if found.saved is not None:
        one, also = found.saved, f", and {count_of(found.saved.also, 'further variable')}" if found.saved.also else ""
        yield f"the checkpoints differ from {one.where}: {one.name} differs{_percent(one.share)}{also}"
    elif found.saves:
        yield f"the checkpoints are equal: {count_of(found.saves, 'checkpoint')} of the same step, bit by bit"
    yield ""
    yield from aligned([("IN THE END", *found.runs), *found.end])


def _percent(share: float | None) -> str:
    return "" if share is None else f" (by {100 * share:.2g} %)"
