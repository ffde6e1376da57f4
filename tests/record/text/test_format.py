"""Spans of time in words."""

from __future__ import annotations

import pytest

from orchestrator.record.text.format import describe_seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (11520, "3 h 12 min"),
    ],
)
def test_a_span_of_time_in_words(seconds: float, words: str) -> None:
    assert describe_seconds(seconds) == words
