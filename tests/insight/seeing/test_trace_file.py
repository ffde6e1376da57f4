"""The trace of a run: its spans nest, its start is that of `orch ps --timeline`, and a long run is folded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.insight.seeing import trace_file
from orchestrator.insight.seeing.run_story import Story
from orchestrator.insight.seeing.story_gather import gather
from orchestrator.record.text import timeline
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


def test_every_event_is_one_that_perfetto_reads(found: list[dict[str, Any]]) -> None:
    assert {one["ph"] for one in found} == {"M", "X", "C", "i"}
    for one in found:
        assert isinstance(one["name"], str)
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        assert one["ph"] == "M" or (isinstance(one["ts"], int) and one["ts"] >= 0)
        assert one["ph"] != "X" or (isinstance(one["dur"], int) and one["dur"] >= 0)
        assert one["ph"] != "i" or one["s"] in "gpt"


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
