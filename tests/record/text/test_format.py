"""Spans of time in words, and tables by the columns of a terminal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from orchestrator.record.text.format import aligned, cut, describe_seconds, display_width, json_text


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


def test_a_table_and_a_cut_go_by_the_columns_of_a_terminal() -> None:
    """Wide characters take two columns, and marks above others none."""
    names = ["train.py", "学習.py", "トレーニング.py", "cafe\u0301.py"]
    lines = aligned([("NAME", "TOOK", "NOTE"), *((name, "1.0 s", "note") for name in names)], right=(1,))
    assert {display_width(line[: line.lower().index("note")]) for line in lines} == {len("トレーニング.py") + 6 + 2 + 5 + 2}
    for width in range(1, 16):
        assert all(display_width(line) <= width for line in cut(names, width))
    assert cut(names, 7) == ["train.…", "学習.py", "トレー…", "café.py".replace("é", "e\u0301")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"a": [1.5, math.nan, {"b": (math.inf, -math.inf)}], "c": None}, {"a": [1.5, "nan", {"b": ["inf", "-inf"]}], "c": None}),
        ({math.nan: 1, 2: math.nan}, {"nan": 1, "2": "nan"}),
        (math.nan, "nan"),
        ({"a": [True, "x", 1]}, {"a": [True, "x", 1]}),
    ],
)
def test_numbers_that_json_does_not_have_are_words(data: Any, expected: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(json_text(data), parse_constant=refuse) == expected
