"""Phases of a start, from recorded events."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import Restart
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Policy
from orchestrator.record.text import timeline
from tests.record.states import begun

HAPPENED = (
    events.RunBegun(100.0),
    events.HostReady(1, "python", "3.11", 2, at=100.25, host="local"),
    events.TemplateReady(("tensorflow",), 3.0, 103.5, "local"),
    events.TaskStarted("worker-0", 1, 10, 103.75),
    events.TaskStarted("worker-1", 1, 11, 104.0),
    events.TaskBegan("worker-1", 1, 104.125),
    events.TaskBegan("worker-0", 1, 103.875),
    events.TaskUp("worker-0", 1, 104.5),
    events.TaskFirstOutput("worker-0", 1, 104.75),
    events.TaskUp("worker-1", 1, 105.0),
    events.TaskReported("worker-0", 1, {"step": 1}, 106.0),
    events.TaskReported("worker-0", 1, {"step": 2}, 109.0),
)


def measure(happened: Sequence[events.Event], *more: str, strategy: str = "multi_worker_mirrored") -> dict[str, dict[str, float]]:
    policy = Policy(strategy, restart=Restart(max=1))
    cluster = begun(policy, dict.fromkeys(("worker-0", "worker-1", *more), "local"), 103.5)
    return timeline.measure(happened, functools.reduce(lambda state, event: lifecycle.step(state, event)[0], happened[1:], cluster))


def test_each_task_has_the_phases_that_it_has_reached() -> None:
    shared = {"agent": 0.25, "template": 3.5, "formed": 5.0}
    assert measure(HAPPENED) == {
        "worker-0": {**shared, "fork or exec": 3.75, "first line": 3.875, "port bound": 4.5, "first output": 4.75, "first report": 6.0},
        "worker-1": {**shared, "fork or exec": 4.0, "first line": 4.125, "port bound": 5.0},
    }


def test_a_cluster_that_has_not_formed_says_so_by_leaving_it_out() -> None:
    measured = measure(HAPPENED[:9])
    assert all("formed" not in marks for marks in measured.values())


def test_no_cluster_has_formed_where_no_task_opened_its_port() -> None:
    ended = (events.TaskExited("worker-0", 1, 0, False, 107.0), events.TaskExited("worker-1", 1, 0, False, 107.25))
    alone = [event for event in HAPPENED if not isinstance(event, events.TaskUp)]
    assert all("formed" not in marks for marks in measure((*alone, *ended)).values())
    assert all("formed" in marks for marks in measure((*HAPPENED, *ended)).values())


def test_an_evaluator_that_opens_no_port_and_comes_back_alone_moves_no_time() -> None:
    evaluator = (
        events.TaskStarted("evaluator-0", 1, 12, 104.0),
        events.TaskExited("evaluator-0", 1, 9, False, 110.0),
        events.TaskSwept("evaluator-0", 1, 110.5),
        events.Tick(150.0),
        events.TaskStarted("evaluator-0", 2, 13, 151.0),
    )
    measured = measure((*HAPPENED, *evaluator), "evaluator-0")
    assert {measured[name]["formed"] for name in ("worker-0", "worker-1")} == {5.0}
    assert measured["evaluator-0"] == {"fork or exec": 1.0}
    ended = events.TaskExited("evaluator-0", 2, 9, False, 160.0)
    assert measure((*HAPPENED, *evaluator, ended), "evaluator-0")["evaluator-0"] == {"fork or exec": 1.0}


def test_a_later_attempt_is_measured_from_its_own_beginning() -> None:
    failed = (
        events.TaskExited("worker-0", 1, 9, False, 110.0),
        events.TaskExited("worker-1", 1, 143, True, 110.25),
        events.TaskSwept("worker-0", 1, 110.5),
        events.TaskSwept("worker-1", 1, 110.5),
        events.Tick(150.0),
    )
    again = (
        events.TaskStarted("worker-0", 2, 20, 150.25),
        events.Tick(150.5),  # for a limit of time
        events.TaskStarted("worker-1", 2, 21, 151.0),
        events.TaskUp("worker-0", 2, 152.0),
        events.TaskUp("worker-1", 2, 153.5),
    )
    assert measure((*HAPPENED, *failed)) == {"worker-0": {}, "worker-1": {}}, "what the attempt before has reached is over"
    measured = measure((*HAPPENED, *failed, *again))
    assert measured == {
        "worker-0": {"fork or exec": 0.25, "port bound": 2.0, "formed": 3.5},
        "worker-1": {"fork or exec": 1.0, "port bound": 3.5, "formed": 3.5},
    }
    assert timeline.slowest(measured) == "the slowest phase of the start was 'port open' of worker-1: 2.50 s"
    assert timeline.durations(measured)["worker-0"] == {"fork or exec": 0.25, "port bound": 1.75, "formed": 1.5}


def test_the_table_has_a_line_a_task_and_a_dash_for_what_is_missing() -> None:
    lines = timeline.table(measure(HAPPENED)).splitlines()
    assert lines[0].split("  ")[0] == "TASK"
    heads = "AGENT|TENSORFLOW IMPORTED|PROCESS STARTED|FIRST LINE|PORT OPEN|CLUSTER FORMED|FIRST OUTPUT|FIRST REPORT"
    assert [word for word in map(str.strip, lines[0].split("  ")) if word][1:] == heads.split("|")
    assert lines[2].split()[-2:] == ["-", "-"]


def test_the_slowest_phase_is_named() -> None:
    assert timeline.slowest(measure(HAPPENED)) == "the slowest phase of the start was 'TensorFlow imported' of worker-1: 3.25 s"
    assert timeline.slowest({}) == ""


def test_how_long_each_phase_took() -> None:
    took = timeline.durations(measure(HAPPENED))["worker-0"]
    assert list(took) == ["agent", "template", "fork or exec", "first line", "port bound", "first output", "formed", "first report"]
    assert list(took.values()) == [0.25, 3.25, 0.25, 0.125, 0.625, 0.25, 0.25, 1.0]
    assert timeline.durations({"worker-0": {}}) == {"worker-0": {}}
