"""How far a training is: what is read of a task's report, and what a user sees of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model.state import events as ev
from orchestrator.model.state.progress import describe, read
from tests.model.run.test_lifecycle import History
from worker.protocol.task_files import PROGRESS

DONE: dict[str, Any] = {"fraction": 0.62, "left_s": 840.0, "step_s": 0.5}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (DONE, "62 %, 14 min left"),
        ({**DONE, "fraction": 0.999, "left_s": 0.2, "hedge": "at most"}, "99 %, at most 1 s left"),
        ({**DONE, "left_s": 59.0, "hedge": "about", "fit": 2}, "fit 2: 62 %, about 59 s left"),
        ({**DONE, "left_s": 60.0}, "62 %, 1 min left"),
        ({**DONE, "left_s": 7200.0}, "62 %, 120 min left"),
        ({**DONE, "left_s": 8100.0}, "62 %, 2 h 15 min left"),
        ({"fraction": 0.1}, "10 %"),
    ],
)
def test_what_is_known_is_said_and_nothing_else(said: dict[str, Any], text: str) -> None:
    assert describe(read(said)) == text


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        [],
        {},
        {"fraction": 1.5},
        {"fraction": "0.5"},
        *({**DONE, **odd} for odd in ({"left_s": -1}, {"left_s": 1e12}, {"hedge": "<b>"})),
    ],
)
def test_what_a_program_writes_instead_is_nothing(said: Any) -> None:
    assert read(said) is None
    assert describe(None) == ""


def reported(history: History, **changes: Any) -> None:
    task = history.cluster.tasks["worker-0"]
    history.happen(ev.TaskReported("worker-0", task.attempt, {"step": 70, PROGRESS: {**DONE, **changes}}, 105.0))


def test_the_time_left_is_hidden_once_the_task_is_silent_and_when_the_run_is_over() -> None:
    history = History().start_all()
    assert history.cluster.progress(105.0) is None, "nothing is known yet"
    reported(history)
    assert history.cluster.tasks["worker-0"].report == {"step": 70}, "it is no value of the program"
    assert describe(history.cluster.progress(160.0)) == "62 %, 14 min left"
    assert describe(history.cluster.progress(166.0)) == "62 %", "the training may hang"
    reported(history, step_s=100.0)
    assert describe(history.cluster.progress(400.0)) == "62 %, 14 min left", "a step takes so long"
    for name in history.cluster.tasks:
        history.end(name)
    history.sweep_all()
    assert history.cluster.progress(105.0) is None


def test_another_attempt_begins_with_nothing_known() -> None:
    history = History().start_all()
    reported(history)
    status = history.cluster.tasks["worker-0"]
    assert status.progress is not None
    history.happen(ev.TaskReported("worker-0", 2, {PROGRESS: {"fraction": 0.1}}, 106.0))
    assert history.cluster.tasks["worker-0"].progress == status.progress, "an attempt that is none of now"
    assert replace(status, progress=None) != status
