"""What is left of an exception that says very much."""

from __future__ import annotations

from worker.values.excerpts import LIMIT, LINE, shorten, shorten_line


def test_a_text_keeps_its_ends() -> None:
    assert shorten("x" * LIMIT) == "x" * LIMIT
    text = shorten("<" + "x" * 10_000_000 + ">")
    assert text.startswith("<x")
    assert text.endswith("x>")
    assert f"[... orch left out {10_000_002 - LIMIT} characters: stderr.log has it all ...]" in text
    assert len(text) < LIMIT + 100
    assert shorten_line("<" + "x" * 5_000 + ">") == "<" + "x" * 799 + " … 4,002 characters left out … " + "x" * 199 + ">"
    assert shorten_line("x" * (LINE + 20)) == "x" * (LINE + 20), "the words would be longer than what they stand for"
