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

from ...model.input import input_counts
from ...record.storage import samples
from ...record.storage.run_directory import RunDir
from ...record.storage.run_files import open_file
from ...record.storage.run_progress import read_cluster
from .charts import COLUMNS
from .run_story import Reported, Story, tell, with_losses

MOST_REPORTS = 200_000
"""The most reports that are read: of a longer run every second, third, … of each task."""
_REPORT = b'{"event":"task_reported",'


def gather(run: RunDir) -> Story:
    """The story of a run, as far as it is recorded. Raises `OrchError` for files that cannot be read."""
    lives = run.is_alive()  # read first: a controller writes its last event before it releases the lock
    story = tell(run.read_events(milestones=True), time.time() if lives else 0.0)
    reports = _read_reports(run)
    if story.cluster.verdict is None and not lives:
        # Nobody has recorded the end: the last that is known is the end of the story.
        ended = max([story.ended, *(one.at for found in reports.values() for one in found), *_newest(run)])
        story = replace(_lasting(story, ended), is_cut=True)
    story = replace(story, cluster=read_cluster(run), reports=reports)
    story = replace(story, samples=tuple(samples.read_samples(run.path, story.seconds / COLUMNS)))
    return replace(story, band=with_losses(story.band, story.cluster.past, story.reports))


def _newest(run: RunDir) -> Iterator[float]:
    return (sample.at for sample in samples.read_latest(run.path).values())


def _lasting(story: Story, ended: float) -> Story:
    """The story with a later end."""

    def stretch(spans: Any) -> Any:
        return (*spans[:-1], replace(spans[-1], ended=ended)) if spans and spans[-1].ended == story.ended else spans

    return replace(story, ended=ended, band=stretch(story.band), tracks={name: stretch(spans) for name, spans in story.tracks.items()})


def _read_reports(run: RunDir) -> Mapping[str, list[Reported]]:
    """The reports of each task, in their order."""
    found: dict[str, list[Reported]] = {}
    before: dict[tuple[str, int], tuple[float, float]] = {}
    with suppress(FileNotFoundError), open_file(run.path / "events.jsonl") as file:
        total = sum(line.startswith(_REPORT) for line in file)
        file.seek(0)
        every = max(1, math.ceil(total / MOST_REPORTS))
        seen: dict[bytes, int] = {}
        for line in file:
            if not line.startswith(_REPORT) or not line.endswith(b"\n"):
                continue
            key = line.partition(b'"values"')[0]
            seen[key] = seen.get(key, -1) + 1
            if seen[key] % every == 0 and (report := _report(line, before)) is not None:
                found.setdefault(report[0], []).append(report[1])
    return found


def _report(line: bytes, before: dict[tuple[str, int], tuple[float, float]]) -> tuple[str, Reported] | None:
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        data = json.loads(line)
        task, attempt, at, values = data["task"], int(data["attempt"]), float(data["at"]), data["values"]
        counts = input_counts.read(values.get(task_files.INPUT))
        waiting = None
        if counts is not None:
            last = before.get((task, attempt), (0.0, 0.0))
            before[task, attempt] = (counts.seconds, counts.waiting_s)
            if counts.seconds > last[0]:
                waiting = max(0.0, min(1.0, (counts.waiting_s - last[1]) / (counts.seconds - last[0])))
        numbers = {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        }
        return str(task), Reported(at, attempt, numbers, waiting)
    return None
