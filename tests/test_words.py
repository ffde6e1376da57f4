"""Words that docs/style.md (rules 3, 5 and 8) replaces: no page, help text, message, docstring or comment of orch has one."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

INSTEAD = {
    "anew": "again",
    "whoever": "anyone who",
    "nobody": "no one",
    "beside": "next to, in addition to",
    "for want of": "because it ran out of",
    "by hand": "without orch",
    "at hand": "available",
    "in the place of": "instead of",
    "of its own accord": "by itself",
    "a line says": "orch prints",
    "a line names": "orch names",
    "a line shows": "orch shows",
}
WORDS = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
PAGES = sorted(path for where in (".", "docs", "examples") for path in (ROOT / where).glob("*.md"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings and the comments of a module, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def found_in(text: str) -> list[str]:
    return [f"{word}: write {INSTEAD[word.lower()]!r}" for word in WORDS.findall(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_none_of_the_words(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)
    assert [f"{path}:{number}: {word}" for number, line in lines for word in found_in(line)] == []


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_no_text_of_the_program_has_one(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert [f"{path}:{line}: {word}" for path in modules for line, text in texts(path) for word in found_in(text)] == []
