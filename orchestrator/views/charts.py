"""Numbers as shapes of SVG: columns of a heat strip, and lines that keep their spikes. Pure, without a chart library.

A picture is `WIDE` units wide and stretches to the page; its texts are next to it as HTML, so that they neither stretch nor shrink.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from worker.protocol.messages import Sampled, TaskUse
from worker.values.fast_dataclass import dataclass

from ..model.policy import stragglers
from .run_story import Reported, Story, Stretch

WIDE, TALL = 720, 60
COLUMNS = 240
"""The most columns of a heat strip, and about the most points of a line."""
POINTS = 12_000
"""About the most points of all lines of one chart: the more tasks, the fewer points each."""
INPUT = 0.3
"""A column in which a task waited for input for more than this share is shown as such."""
PEERS = 0.5
"""The same for the wait for peers."""
LONG_S = 2.0
"""A task that has waited for its peers for so long in one step waits, whatever its steps before took."""
STOPPED = frozenset("Tt")

NAMES = {
    "starts": "starts",
    "stopped": "stopped (SIGSTOP)",
    "missing": "the others wait for it",
    "input": "waits for input",
    "peers": "waits for peers",
    "idle": "hardly computes",
    "some": "computes a little",
    "much": "computes",
    "most": "computes most",
}
"""What a cell of the strip means, from its class. A cell without a class is empty."""


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of the heat strip: for each class the outline of all its cells, and its share of the task's time."""

    name: str
    paths: Mapping[str, str]
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DrawnLine:
    name: str
    path: str
    is_odd: bool = False
    """It stands for values that are not finite, at the top of the picture."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time with one scale."""

    title: str
    lines: tuple[DrawnLine, ...]
    top: str
    bottom: str
    last: str = ""
    """The newest value, in words."""
    summary: str = ""


# --- the heat strip -----------------------------------------------------------------------------


def strips(story: Story) -> list[Strip]:
    """Return what each task did, in columns of equal time."""
    count = max(20, min(COLUMNS, int(story.seconds / 2)))
    width_s = story.seconds / count
    used = _use_of_columns(story, count, width_s)
    highest = max((column.cpu for columns in used.values() for column in columns.values()), default=0.0)
    found = []
    for name, spans in story.tracks.items():
        waits = _waits(story.reports.get(name, ()))
        kinds = [
            _kind(spans, waits, used.get(name, {}).get(column), story.begun + (column + 0.5) * width_s, highest) for column in range(count)
        ]
        alive = sum(map(bool, kinds))
        paths = {kind: _cells([one == kind for one in kinds], count) for kind in NAMES if kind in kinds}
        found.append(Strip(name, paths, {kind: kinds.count(kind) / alive for kind in paths}))
    return found


@dataclass(frozen=True, slots=True)
class _Column:
    cpu: float
    wait: str
    """A word of `_WAITS`, if any sample says so; else empty."""


def _use_of_columns(story: Story, count: int, width_s: float) -> dict[str, dict[int, _Column]]:
    """Return what each task used in each column, and whether it was stopped or waited there."""
    sums: dict[str, dict[int, list[float]]] = {}
    waits: dict[tuple[str, int], set[str]] = {}
    latest: dict[str, Sampled] = {}
    for sample in story.samples:
        latest[sample.host] = sample
        missing = _missing(latest)
        # A sample may be longer than a column.
        first = max(0, int((sample.at - sample.seconds - story.begun) / width_s))
        last = min(count - 1, int((sample.at - story.begun) / width_s))
        for use in sample.tasks:
            columns = sums.setdefault(use.task, {})
            wait = _wait(use) or ("missing" if use.task in missing else "")
            for column in range(first, last + 1):
                columns.setdefault(column, []).append(use.cpu)
                if wait:
                    waits.setdefault((use.task, column), set()).add(wait)
    return {
        task: {
            column: _Column(sum(values) / len(values), next((one for one in _WAITS if one in waits.get((task, column), ())), ""))
            for column, values in columns.items()
        }
        for task, columns in sums.items()
    }


def awaited(story: Story) -> dict[str, float]:
    """The tasks for which the others waited at a standstill, and for how many seconds."""
    latest: dict[str, Sampled] = {}
    found: dict[str, float] = {}
    for sample in story.samples:
        latest[sample.host] = sample
        if sample.host == story.samples[0].host:
            for name in _missing(latest):
                found[name] = found.get(name, 0.0) + sample.seconds
    return found


def _missing(latest: Mapping[str, Sampled]) -> list[str]:
    return stragglers.absent(latest, {use.task: use.attempt for sample in latest.values() for use in sample.tasks if use.came})[0]


_WAITS = ("stopped", "missing", "input", "peers")


def _wait(use: TaskUse) -> str:
    """Return what a task waited for in the steps of a sample; empty: it worked, or its steps are not known."""
    if use.state in STOPPED:
        return "stopped"
    whole = use.work + use.peers + use.input
    if use.reads > LONG_S:
        return "input"
    if use.waits > LONG_S or (whole and use.peers > PEERS * whole):
        return "peers"
    return "input" if whole and use.input > INPUT * whole else ""


def _waits(reports: Iterable[Reported]) -> list[tuple[float, float]]:
    return [(report.at, report.waiting) for report in reports if report.waiting is not None]


def _kind(spans: Sequence[Stretch], waits: Sequence[tuple[float, float]], use: _Column | None, at: float, highest: float) -> str:
    life = next((span.kind for span in spans if span.begun <= at < span.ended), "")
    if not life:
        return ""
    if use is not None and use.wait == "stopped":
        return "stopped"
    if life == "starts":
        return "starts"
    if use is not None and use.wait:
        return use.wait
    place = bisect.bisect_left(waits, (at, 0.0))
    if place < len(waits) and waits[place][1] > INPUT:
        return "input"
    share = use.cpu / highest if use is not None and highest else 0.5
    return "idle" if share < 0.1 else "some" if share < 0.4 else "much" if share < 0.75 else "most"


def _cells(is_on: Sequence[bool], count: int) -> str:
    """The outline of the columns that are on, neighbours as one."""
    parts, begun = [], None
    for column, on in enumerate([*is_on, False]):
        if on and begun is None:
            begun = column
        elif not on and begun is not None:
            left, right = round(begun * WIDE / count, 1), round(column * WIDE / count, 1)
            parts.append(f"M{left:g} 0H{right:g}V9H{left:g}z")
            begun = None
    return "".join(parts)


# --- lines --------------------------------------------------------------------------------------


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about `most` points: of each stretch the lowest and the highest, so that spikes stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / max(1, most // 2))
    found: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        found += sorted(ends)
    return found


def chart(
    title: str,
    values: Mapping[str, Sequence[tuple[float, float]]],
    story: Story,
    words: Callable[[float], str],
    *,
    top: float | None = None,
    from_zero: bool = True,
) -> Chart | None:
    """A chart of these points (time, value) by name; None without points. `top`: the end of the scale; None: the highest value."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in values.items()}
    odd = {name: [point for point in points if not math.isfinite(point[1])] for name, points in values.items()}
    every = [value for points in finite.values() for _, value in points]
    last = sorted((points[-1][1] for points in values.values() if points), key=lambda value: (not math.isfinite(value), value))
    if not last:
        return None
    low = min(0.0, *every) if every and from_zero else min(every, default=0.0)
    high = max([*every, *([top] if top is not None else [])], default=0.0)
    most = max(24, min(COLUMNS * 2, POINTS // max(1, len(finite))))
    lines = [
        DrawnLine(name, _path(thin(points, most), story, low, high, sorted([*_breaks(story, name), *(at for at, _ in odd[name])])))
        for name, points in finite.items()
        if points
    ]
    top_of = [(at, high) for at, _ in itertools.chain(*odd.values())]
    if top_of:  # one line for all tasks, but not over the times at which the value was finite again
        again = sorted({at for points in finite.values() for at, _ in points})
        lines.append(DrawnLine("", _path(thin(sorted(set(top_of)), most), story, low, high, again), is_odd=True))
    newest = " to ".join(dict.fromkeys([words(last[0]), words(last[-1])]))
    reach = f"lowest {words(min(every))}, highest {words(max(every))}" if every else "never a finite number"
    summary = f"{title}: {reach}, at the end {newest}"
    return Chart(title, tuple(lines), words(high) if every else "", words(low) if every else "", newest, summary)


def _breaks(story: Story, task: str) -> list[float]:
    """When each attempt of a task but the last has ended: there its lines end, too."""
    pairs = itertools.pairwise(story.tracks.get(task, ()))
    return [one.ended for one, later in pairs if one.attempt != later.attempt]


def _path(points: Sequence[tuple[float, float]], story: Story, low: float, high: float, breaks: Sequence[float]) -> str:
    span, found = (high - low) or 1.0, ""
    for _, piece in itertools.groupby(points, key=lambda point: bisect.bisect_left(breaks, point[0])):
        places = [((at - story.begun) / story.seconds * WIDE, TALL - (value - low) / span * (TALL - 2) - 1) for at, value in piece]
        found += "M" + "L".join(f"{x:.0f} {y:.1f}" for x, y in places)
        if len(places) == 1:
            found += "h2" if places[0][0] < WIDE - 2 else "h-2"
    return found


def numbers_of(samples: Iterable[Sampled], pick: Callable[[TaskUse], float]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        for use in sample.tasks:
            found.setdefault(use.task, []).append((sample.at, pick(use)))
    return found


def reported_numbers(story: Story, name: str) -> dict[str, list[tuple[float, float]]]:
    """One value of the tasks' reports over time."""
    told = {task: [(one.at, {**one.values, **one.not_finite}) for one in reports] for task, reports in story.reports.items()}
    found = {task: [(at, values[name]) for at, values in each if name in values] for task, each in told.items()}
    return {task: points for task, points in found.items() if points}
