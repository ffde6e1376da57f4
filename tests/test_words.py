"""Words that docs/style.md (rules 3, 5 and 8) replaces: no page, help text, message, docstring or comment of orch has one."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.cause import remedies, together
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
OF_PAGES = {"says so": "orch warns, prints it or fails", "goes on": "continues, is running"}
"""More such words, for pages that people write; generated pages repeat the texts of the program."""
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
    own = OF_PAGES if path.name not in ("api.md", "reference.md") else {}
    found = ((number, [*found_in(line), *(f"{word}: write {own[word]!r}" for word in own if word in line)]) for number, line in lines)
    assert [f"{path}:{number}: {word}" for number, words in found for word in words] == []


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_no_text_of_the_program_has_one(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert [f"{path}:{line}: {word}" for path in modules for line, text in texts(path) for word in found_in(text)] == []


MOST, MOST_OF_A_FIX = 120, 160
LONG = {
    "Input of GeneratorDatasetOp::Dataset will not be optimized"  # TensorFlow's own, which orch folds
}
"""How messages begin that may be longer."""
OF_HELP = {"setting", "option", "argument", "addoption", "addini"}
"""Calls whose texts are help texts: one line each, as test_docs.py looks."""
PATTERN = re.compile(r"\(\?|\\[\[\]().w|]|\|\w+ \w+\||import |^\w+(?:\.\w+)+ |\n *[a-z#]|background: ")
"""Marks of texts that are no messages: patterns, programs, lists of names, styles."""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that a user may see, with a mark for each value in them, and their lines."""
    tree = ast.parse(path.read_text())
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        for statement in body if isinstance(body := getattr(node, "body", None), list) else ():
            left_out.update([statement.value] if isinstance(statement, ast.Expr) else [])
        if isinstance(node, ast.JoinedStr):
            left_out.update(ast.walk(node))
            left_out.discard(node)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {*OF_HELP, "compile", "Alternatives"}:
            left_out.update(ast.walk(node))
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…" for part in parts)
        if isinstance(node, ast.Constant | ast.JoinedStr) and node not in left_out and " " in text and not PATTERN.search(text):
            yield node.lineno, text


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_a_message_says_what_happened_in_one_line(package: str) -> None:
    """Then comes ``fix:``, then ``more:``, each of which may have as much."""
    found = {
        f"{path}:{line}: {part}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in messages(path)
        for part in re.split(r"\bfix: |\bmore: |\n", re.sub(r"\{\w+\}", "…", text))
        if len(part.strip()) > MOST and not part.startswith(tuple(LONG))
    }
    assert found == set()
    assert len(LONG) <= 5


def test_a_remedy_is_one_line() -> None:
    found = {remedy.text: len(re.sub(r"\{\w+\}", "…", remedy.text)) for remedy in (*remedies.every(), *together.every())}
    assert {text: length for text, length in found.items() if length > MOST_OF_A_FIX} == {}
