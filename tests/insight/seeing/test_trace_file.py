"""The trace of a run: its spans nest, its start is that of `orch ps --timeline`, and a long run is folded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.record.text import timeline
from orchestrator.views import trace_file
from orchestrator.views.run_story import Story
from orchestrator.views.story_gather import gather
from tests.made_up_run import MadeUpRun


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Three workers, ten minutes, one restart."""
    return gather(MadeUpRun(tmp_path_factory.mktemp("made"), workers=3, fails_at=(0.5,)).run)


@pytest.fixture(scope="module")
def found(story: Story) -> list[dict[str, Any]]:
    traced = json.loads(json.dumps(trace_file.trace(story), allow_nan=False))
    assert traced["displayTimeUnit"] == "ms"
    made: list[dict[str, Any]] = traced["traceEvents"]
    return made


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def are_values(value: object) -> bool:
    return isinstance(value, dict) and all(is_text(name) and type(one) in (int, float, str) for name, one in value.items())


def are_numbers(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(is_text(name) and type(one) in (int, float) for name, one in value.items())


IN_EACH = {"name": is_text, "pid": is_count, "tid": is_count}
FIELDS: dict[str, dict[str, Callable[[object], bool]]] = {
    "X": {**IN_EACH, "cat": is_text, "ts": is_count, "dur": is_count, "args": are_values},
    "C": {**IN_EACH, "cat": is_text, "ts": is_count, "args": are_numbers},
    "i": {**IN_EACH, "cat": is_text, "ts": is_count, "s": lambda value: value in ("g", "p", "t")},
    "M": {**IN_EACH, "args": are_values},
}
"""The fields of the kinds of events that a trace of a run has, by "Trace Event Format": complete events, counters, instants, metadata."""
METADATA = {"process_name": {"name": str}, "process_sort_index": {"sort_index": int}, "thread_name": {"name": str}}


def test_every_field_of_every_event_is_one_of_the_format(story: Story, found: list[dict[str, Any]]) -> None:
    """Perfetto's own reader is a program that is not on any package index, so the document of the format is the judge."""
    assert {*trace_file.trace(story)} == {"traceEvents", "displayTimeUnit"}
    assert {one["ph"] for one in found} == {*FIELDS}
    for one in found:
        checks = FIELDS[one["ph"]]
        assert {*one} == {"ph", *checks}, one
        assert [name for name, holds in checks.items() if not holds(one[name])] == [], one
        if one["ph"] == "M":
            assert {name: type(value) for name, value in one["args"].items()} == METADATA[one["name"]]


def test_processes_and_threads_are_told_apart(found: list[dict[str, Any]]) -> None:
    """Each has one name; no thread has the number of a process but the thread of the run, which is the main thread of its process."""
    named: dict[str, list[tuple[int, ...]]] = {"process_name": [], "thread_name": []}
    for one in found:
        if one["name"] in named:
            named[one["name"]].append((one["pid"],) if one["name"] == "process_name" else (one["pid"], one["tid"]))
    pids, tids = [pid for (pid,) in named["process_name"]], [tid for _, tid in named["thread_name"]]
    assert len({*pids}) == len(pids) == 2
    assert len({*tids}) == len(tids) == 4
    assert {*pids} & {*tids} == {trace_file.RUN}
    assert 0 not in {*pids, *tids}
    assert {(one["pid"], one["tid"]) for one in found if one["ph"] != "M"} <= {*named["thread_name"]}


def test_spans_of_a_task_nest(found: list[dict[str, Any]]) -> None:
    """Of two spans of a thread, one holds the other, or ends before the other begins."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in found:
        if one["ph"] == "X":
            threads.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    assert len(threads) == 4
    for spans in threads.values():
        open_until: list[int] = []
        for begun, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begun:
                open_until.pop()
            assert not open_until or ended <= open_until[-1]
            open_until.append(ended)


def test_the_phases_of_the_start_are_those_of_the_timeline(story: Story, found: list[dict[str, Any]]) -> None:
    expected = timeline.durations(timeline.measure(story.happened, story.cluster))["worker-1"]
    labels = {timeline.label(phase): seconds for phase, seconds in expected.items()}
    assert len(labels) > 3
    (thread,) = {(one["pid"], one["tid"]) for one in found if one["name"] == "thread_name" and one["args"]["name"] == "worker-1"}
    shown = {one["name"]: one["dur"] / 1e6 for one in found if one["ph"] == "X" and (one["pid"], one["tid"]) == thread}
    assert {name: shown[name] for name in labels} == pytest.approx(labels, abs=0.002)


def test_failures_restarts_and_counters_are_there(found: list[dict[str, Any]]) -> None:
    names = [one["name"] for one in found if one["ph"] == "i"]
    assert "worker-1: exit code 1" in names
    assert any(name.startswith("worker-0: exit code 143") and name.endswith("(stopped by orch)") for name in names)
    assert "attempt 2 begins" in names
    assert not any("hunter2" in name for name in names)
    counters = {one["name"] for one in found if one["ph"] == "C"}
    assert counters == {f"worker-{number} {what}" for number in range(3) for what in ("CPU", "memory", "steps/s")}
    assert any(one["name"].startswith("steps ") and one["ph"] == "X" for one in found)


def test_a_long_run_is_folded(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MOST_EVENTS", 300)
    assert len(trace_file.trace(story)["traceEvents"]) < 600
