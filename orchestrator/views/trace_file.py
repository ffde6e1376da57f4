"""A run as a trace in Chrome's JSON format, which Perfetto (ui.perfetto.dev) opens. Pure.

A process of the trace is a host, a thread is a task; process 1 is the run itself. All of these numbers differ, and none is 0: viewers take
a thread with the number of its process for the main thread, and some take number 0 for the idle time of the machine. Spans of a thread
nest: an attempt holds the phases of its start and then its steps, many in one span. CPU, memory and steps per second are counters; ends by
a failure, notes and restarts are instants. Times are microseconds since the run began, by the controller's clock, to which the times of
all hosts were moved.
Format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from worker.values.redact import hide_secrets

from ..model.cause.exit_status import describe_code
from ..model.state import events
from ..record.text import timeline
from ..record.text.lines import clean
from .charts import numbers_of, thin
from .run_story import Reported, Story, Stretch, through_epochs

MOST_EVENTS = 100_000
"""About the most events of a trace: the more tasks, the fewer counters and spans of steps has each. Perfetto calls JSON a legacy format."""
_LINES = 4
"""Of each task: CPU, memory, steps per second, spans of steps."""
RUN = 1
"""The process, and the thread, of the run itself."""


def trace(story: Story) -> dict[str, Any]:
    """The trace, as a value for a file of JSON."""
    story = replace(story, reports=through_epochs(story.reports))
    placed = _Places(story)
    most = max(24, MOST_EVENTS // (_LINES * max(1, len(story.tracks))))
    found: list[dict[str, Any]] = [*placed.names()]
    found += _run_events(story, placed)
    for task in story.tracks:
        found += _task_spans(story, placed, task, most)
        found += _rates(story, placed, task, most)
    for name, unit, points in (
        ("CPU", "percent of a core", numbers_of(story.samples, lambda use: use.cpu)),
        ("memory", "bytes", numbers_of(story.samples, lambda use: float(use.memory))),
    ):
        for task, line in points.items():
            found += placed.counter(task, f"{task} {name}", unit, thin(line, most))
    return {"traceEvents": found, "displayTimeUnit": "ms"}


class _Places:
    """The process and the thread of each task in the trace."""

    def __init__(self, story: Story) -> None:
        self._begun = story.begun
        self._hosts = {task.name: task.host for task in story.cluster.tasks.values()}
        self._pids = {host: number for number, host in enumerate(dict.fromkeys(self._hosts.values()), start=RUN + 1)}
        self._tids = {task: number for number, task in enumerate(story.tracks, start=RUN + 1 + len(self._pids))}

    def of(self, task: str) -> dict[str, int]:
        return {"pid": self._pids.get(self._hosts.get(task, ""), RUN), "tid": self._tids.get(task, RUN)}

    def at(self, moment: float) -> int:
        return max(0, round((moment - self._begun) * 1e6))

    def names(self) -> Iterator[dict[str, Any]]:
        for pid, host in ((RUN, "run"), *((pid, f"host {host}") for host, pid in self._pids.items())):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": host}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": pid}}
        yield {"ph": "M", "name": "thread_name", "pid": RUN, "tid": RUN, "args": {"name": "attempts"}}
        for task in self._tids:
            yield {"ph": "M", "name": "thread_name", **self.of(task), "args": {"name": task}}

    def span(self, where: Mapping[str, int], name: str, begun: float, ended: float, **args: Any) -> dict[str, Any]:
        start = self.at(begun)
        return {"ph": "X", "cat": "run", "name": name, **where, "ts": start, "dur": max(0, self.at(ended) - start), "args": args}

    def instant(self, where: Mapping[str, int], name: str, at: float, scope: str) -> dict[str, Any]:
        return {"ph": "i", "cat": "run", "name": hide_secrets(clean(name)), **where, "ts": self.at(at), "s": scope}

    def counter(self, task: str, name: str, unit: str, points: Iterable[tuple[float, float]]) -> Iterator[dict[str, Any]]:
        for at, value in points:
            yield {"ph": "C", "cat": "use", "name": name, **self.of(task), "ts": self.at(at), "args": {unit: round(value, 3)}}


def _run_events(story: Story, placed: _Places) -> Iterator[dict[str, Any]]:
    """Return what the run did, its notes and restarts, and the failed ends of tasks."""
    here = {"pid": RUN, "tid": RUN}
    for one in story.band:
        yield placed.span(here, one.kind, one.begun, one.ended, attempt=one.attempt)
    for before, after in itertools.pairwise(story.band):
        if before.attempt != after.attempt:
            yield placed.instant(here, f"attempt {after.attempt} begins", after.begun, "g")
    for event in story.happened:
        if isinstance(event, events.RunNoted):
            yield placed.instant(here, event.line, event.at, "t")
        elif isinstance(event, events.TaskExited) and event.code:
            why = " (stopped by orch)" if event.stopped else ""
            yield placed.instant(placed.of(event.task), f"{event.task}: {describe_code(event.code, event.killed)}{why}", event.at, "t")


def _task_spans(story: Story, placed: _Places, task: str, most: int) -> Iterator[dict[str, Any]]:
    """The attempts of a task, each with the phases of its start and with its steps."""
    where = placed.of(task)
    starts = _starts(story, task)
    for attempt, begun, ended in _lives(story.tracks[task]):
        phases = list(starts) if starts and starts[0].attempt == attempt else []
        begun = min([begun, *(one.begun for one in phases)])
        ended = max([ended, *(one.ended for one in phases)])
        yield placed.span(where, f"attempt {attempt}", begun, ended, attempt=attempt)
        for one in phases:
            yield placed.span(where, one.kind, one.begun, one.ended)
        free = max([begun, *(one.ended for one in phases)])
        yield from _steps(placed, where, [one for one in story.reports.get(task, ()) if one.attempt == attempt], free, ended, most)


def _lives(track: Sequence[Stretch]) -> Iterator[tuple[int, float, float]]:
    """The number, the begin and the end of each attempt of a task."""
    for attempt, parts in itertools.groupby(track, key=lambda one: one.attempt):
        found = list(parts)
        yield attempt, found[0].begun, found[-1].ended


def _starts(story: Story, task: str) -> list[Stretch]:
    """The phases of the start of a task's last attempt, one after the other: those of ``orch ps --timeline``."""
    marks = timeline.measure(story.happened, story.cluster).get(task, {}) if task in story.cluster.tasks else {}
    attempt = story.cluster.tasks[task].attempt if marks else 0
    forked = (one.at for one in story.happened if isinstance(one, events.TaskStarted) and (one.task, one.attempt) == (task, attempt))
    since = next((at - marks["fork or exec"] for at in forked if "fork or exec" in marks), story.begun)
    ends = sorted(marks.items(), key=lambda item: item[1])
    begins = [0.0, *(seconds for _, seconds in ends)]
    return [
        Stretch(since + begun, since + seconds, timeline.label(phase), attempt)
        for begun, (phase, seconds) in zip(begins, ends, strict=False)
    ]


def _steps(
    placed: _Places, where: Mapping[str, int], reports: Sequence[Reported], free: float, ended: float, most: int
) -> Iterator[dict[str, Any]]:
    """Spans from report to report, within the time from `free` on."""
    told = [one for one in reports if "step" in one.values]
    every = max(1, len(told) // most)
    for before, after in itertools.pairwise(told[::every]):
        begun, until = max(free, before.at), min(ended, after.at)
        if until > begun and after.values["step"] > before.values["step"]:
            name = f"steps {before.values['step'] + 1:g} to {after.values['step']:g}"
            yield placed.span(where, name, begun, until, **after.values)


def _rates(story: Story, placed: _Places, task: str, most: int) -> Iterator[dict[str, Any]]:
    told = [one for one in story.reports.get(task, ()) if "step" in one.values]
    points = [
        (after.at, (after.values["step"] - before.values["step"]) / (after.at - before.at))
        for before, after in itertools.pairwise(told)
        if after.attempt == before.attempt and after.at > before.at and after.values["step"] >= before.values["step"]
    ]
    return placed.counter(task, f"{task} steps/s", "steps per second", thin(points, most))
