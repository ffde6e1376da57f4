"""The lines about data and callbacks that are others than before a restart: said where they are others, and not where they are the same."""

from __future__ import annotations

from typing import Any

import pytest

from worker.task.checkpoints import callback_state, input_check

BEFORE: dict[str, Any] = {"batch_sizes": [8, 2], "steps_per_execution": 1, "fingerprint": 17}


@pytest.mark.parametrize(
    ("name", "now", "words"),
    [
        ("batch_sizes", [16, 2], "the batch size was 8, 2 and is 16, 2: in this epoch some elements may come twice and others never"),
        ("steps_per_execution", 4, "steps_per_execution was 1 and is 4: callbacks come after other steps than before"),
        ("fingerprint", 18, "the arrays are not those of the training before"),
    ],
)
def test_data_that_differ_are_said_and_the_same_are_not(name: str, now: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(input_check, "print_once", said.append)
    for same in (BEFORE, {**BEFORE, name: None}, {}):
        input_check.tell_of_other(BEFORE, same)
    assert said == []
    input_check.tell_of_other(BEFORE, {**BEFORE, name: now})
    assert [words in line for line in said] == [True]


def test_other_callbacks_are_said_and_the_same_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(callback_state, "print_once", said.append)
    for names in (["object"], ["Mine"]):
        callback_state.restore([object()], [{"class": name, "kept": {}} for name in names], {})
    assert said == ["checkpoints: the callbacks were Mine and are object: those of another class or place begin again"]
