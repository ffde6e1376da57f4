"""The answers of tasks to `orch profile`, as they stand in a file that any program may write into."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.answers import ProfileAnswer, find


def answer(request: str, data: bytes = b"", **more: object) -> bytes:
    return json.dumps({"id": request, "bytes": len(data), **more}).encode() + b"\n" + data


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (b"", None),
        (answer("one", b"abc", begun=5.0, seconds=2.0), ProfileAnswer(b"abc", 5.0, 2.0)),
        (answer("one", b"ab\nc"), ProfileAnswer(b"ab\nc")),
        (answer("other", b"x\ny") + answer("one", b"abc"), ProfileAnswer(b"abc")),
        (answer("other", b"x\ny"), None),
        (answer("one", refused="it crashes"), ProfileAnswer(refused="it crashes")),
        (answer("one", failed="no room"), ProfileAnswer(failed="no room")),
        (answer("one", b"abc")[:-1], None),
        (answer("one", b"abc")[:10], None),
        (b"no json\n" + answer("one", b"abc"), None),
        (b"[1]\n", None),
        (b'{"id": "one", "bytes": -5}\nabc', None),
        (b'{"id": "other", "bytes": -5}\n' + answer("one", b"abc"), ProfileAnswer(b"abc")),
        (b'{"id": "one", "bytes": "many"}\n', None),
        (b'{"id": "one", "bytes": Infinity}\n', None),
        (b"[" * 5000 + b"\n", None),
    ],
)
def test_an_answer_is_found_once_it_is_complete(written: bytes, found: ProfileAnswer | None) -> None:
    assert find(written, "one") == found


@given(st.binary(max_size=200))
def test_whatever_stands_in_the_file_is_no_error(written: bytes) -> None:
    find(written, "one")


def test_a_file_of_many_lines_is_read_in_a_moment() -> None:
    """Of 2 MB, each line once took a copy of the rest."""
    assert find(b"{}\n" * 700_000, "one") is None
    assert find(b"x" * 3_000_000 + b"\n", "one") is None
    assert find(b"".join(answer(str(number)) for number in range(500)) + answer("one", b"abc"), "one") == ProfileAnswer(b"abc")
