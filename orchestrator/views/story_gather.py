"""Reads a run's files, and gives its story. Nothing is waited for: a run that goes on is shown as it is now."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from worker.protocol import task_files
from worker.values.codec import MOMENTS

from ..model.policy.not_finite import as_numbers
from ..record import samples
from ..record.run_directory import RunDir
from ..record.run_progress import read_cluster, unreadable
from .charts import COLUMNS
from .goodput import marked
from .run_story import Reported, Story, tell

MOST_REPORTS = 100_000
"""The most reports that are kept: of a longer run every second, fourth, … of each task."""


def gather(run: RunDir) -> Story:
    """The story of a run, as far as it is recorded. Raises `OrchError` for files that cannot be read."""
    lives = run.is_alive()  # read first: a controller writes its last event before it releases the lock
    kept = _Reports()
    recorded = list(run.read_events(milestones=True, on_report=kept.add))
    try:
        story = tell(recorded, time.time() if lives else 0.0)
    except (LookupError, ValueError, ArithmeticError) as error:
        raise unreadable(run, error) from error
    reports = kept.read()
    if story.cluster.verdict is None and not lives:
        # No one has recorded the end: the last that is known is the end of the story.
        ended = max([story.ended, *(one.at for found in reports.values() for one in found), *_newest(run)])
        story = replace(_lasting(story, ended), is_cut=run.read_verdict() is None, cluster=read_cluster(run))
    story = replace(story, reports=reports, samples=tuple(samples.read_samples(run.path, story.seconds / COLUMNS)))
    return replace(story, band=marked(story))


def _newest(run: RunDir) -> Iterator[float]:
    return (sample.at for sample in samples.read_latest(run.path).values())


def _lasting(story: Story, ended: float) -> Story:
    def stretch(spans: Any) -> Any:
        return (*spans[:-1], replace(spans[-1], ended=ended)) if spans and spans[-1].ended == story.ended else spans

    return replace(story, ended=ended, band=stretch(story.band), tracks={name: stretch(spans) for name, spans in story.tracks.items()})


class _Reports:
    """Keeps the reports of a run while its events are read: of a long run every second, fourth, … of each task."""

    def __init__(self) -> None:
        self._lines: dict[bytes, list[bytes]] = {}
        self._seen: dict[bytes, int] = {}
        self._every, self._count = 1, 0

    def add(self, key: bytes, line: bytes) -> None:
        """`key`: the beginning of the line, which names the task and the attempt."""
        seen = self._seen[key] = self._seen.get(key, -1) + 1
        if seen % self._every:
            return
        self._lines.setdefault(key, []).append(line)
        self._count += 1
        if self._count > MOST_REPORTS:
            self._every *= 2
            self._lines = {key: lines[::2] for key, lines in self._lines.items()}
            self._count = sum(map(len, self._lines.values()))

    def read(self) -> Mapping[str, list[Reported]]:
        """The reports of each task, in their order."""
        found: dict[str, list[Reported]] = {}
        for lines in self._lines.values():
            before = (0.0, 0.0)
            for line in lines:
                if (report := _report(line, before)) is not None:
                    task, one, before = report
                    found.setdefault(task, []).append(one)
        return found


def _report(line: bytes, before: tuple[float, float]) -> tuple[str, Reported, tuple[float, float]] | None:
    """A report, and the seconds and the waiting that its task had counted. `before`: the same of the report before."""
    with suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        data = json.loads(line)
        task, attempt, at, values = data["task"], int(data["attempt"]), float(data["at"]), data["values"]
        if not MOMENTS.fits(at):
            return None
        counts, waiting = values.get(task_files.INPUT), None
        if isinstance(counts, dict):
            seconds, waited = float(counts["seconds"]), float(counts["waiting_s"])
            if seconds > before[0]:
                waiting = max(0.0, min(1.0, (waited - before[1]) / (seconds - before[0])))
            before = (seconds, waited)
        numbers = {
            name: float(value)
            for name, value in as_numbers(values).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        odd = {name: value for name, value in numbers.items() if name not in finite}
        return str(task), Reported(at, attempt, finite, waiting, odd), before
    return None
