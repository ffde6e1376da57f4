"""What is left of an exception that says very much."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.excerpts import LIMIT, LINE, WHERE, TracebackExcerpt, shorten, shorten_line

HEAD = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()", "    ^^^^^^"]
ZEROS = ["       [0., 0., 0., ..., 0., 0., 0.],"] * 30


def excerpt(lines: list[str], most: int = 24) -> list[str]:
    found = TracebackExcerpt(most, 12_000)
    return [*found.feed(lines), *found.end()]


def test_a_text_keeps_its_ends() -> None:
    assert shorten("x" * LIMIT) == "x" * LIMIT
    text = shorten("<" + "x" * 10_000_000 + ">")
    assert text.startswith("<x")
    assert text.endswith("x>")
    assert f"[... orch left out {10_000_002 - LIMIT} characters: stderr.log has it all ...]" in text
    assert len(text) < LIMIT + 100
    assert shorten_line("<" + "x" * 5_000 + ">") == "<" + "x" * 799 + " … 4,002 characters left out … " + "x" * 199 + ">"
    assert shorten_line("x" * LINE) == "x" * LINE


def test_the_rows_of_a_tensor_lose_their_middle() -> None:
    message = ["ValueError: bad batch [[0., 0., 0., ..., 0., 0., 0.],", *ZEROS, "       [0., 0., 0., ..., 0., 0., 1.]], shape=(32, 784))"]
    rows = [*ZEROS[:3], f"… 24 rows left out: {WHERE} …", *ZEROS[:3]]
    assert excerpt([*HEAD, *message]) == [*HEAD, message[0], *rows, message[-1]]
    assert excerpt([*HEAD, "ValueError: [", *ZEROS[:7], "] shape"])[8] == f"… 1 row left out: {WHERE} …"
    assert excerpt([*HEAD, "ValueError: [", *ZEROS[:6], "] shape"])[5:-1] == ZEROS[:6]


def test_a_long_message_keeps_its_ends() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert excerpt([*HEAD, "E: first", *lines]) == [*HEAD, "E: first", *lines[:13], f"… 77 lines left out: {WHERE} …", *lines[-10:]]
    found = excerpt([*HEAD, *["E" * 900] * 100], most=1000)
    assert found == [*HEAD, *["E" * 900] * 13, f"… 77 lines left out: {WHERE} …", *["E" * 900] * 10]


def test_every_exception_of_a_chain_is_shortened_by_itself() -> None:
    chained = ["", "During handling of the above exception, another exception occurred:", "", *HEAD, "E: two", *ZEROS]
    found = excerpt([*HEAD, "E: one", *ZEROS, *chained])
    assert [line for line in found if "left out" in line] == [f"… 24 rows left out: {WHERE} …"] * 2
    assert [line for line in found if not line.startswith(" ")].count("E: two") == 1
    assert len(found) == 2 * (len(HEAD) + 1 + 7) + 3


@pytest.mark.parametrize(
    "said", ["INFO:root:went on", "2026-11-22 05:00:00 went on", "W0000 00:00:1.1  1 x.cc:1] went on", "[INFO] went on"]
)
def test_what_a_program_logs_after_an_exception_is_not_a_part_of_it(said: str) -> None:
    after = [said, *ZEROS, *[f"step {number}" for number in range(1000)]]
    assert excerpt([*HEAD, "E: caught", *after]) == [*HEAD, "E: caught", *after]


def test_what_comes_after_a_pause_is_not_a_part_of_it() -> None:
    found = TracebackExcerpt(24, 12_000)
    assert [*found.feed([*HEAD, "E: caught"]), *found.end()] == [*HEAD, "E: caught"]
    lines = [f"step {number}" for number in range(1000)]
    assert found.feed(lines) is lines


@given(st.lists(st.sampled_from([*HEAD, "E: x", ZEROS[0], "word", "", "INFO:x"]), max_size=80), st.integers(0, 80))
@settings(deadline=None)
def test_it_does_not_matter_how_the_lines_arrive(lines: list[str], cut: int) -> None:
    found = TracebackExcerpt(24, 12_000)
    assert [*found.feed(lines[:cut]), *found.feed(lines[cut:]), *found.end()] == excerpt(lines)


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=30)))
@settings(deadline=None)
def test_where_there_is_no_exception_nothing_is_left_out(lines: list[str]) -> None:
    assert TracebackExcerpt(24, 12_000).feed(lines) is lines
