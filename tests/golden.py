"""Answers of orch in files next to their tests: a word of a message is changed in one place.

A file holds cases, with an empty line between them. The lines of a case that begin with ``>`` are what is given, ``#`` begins a remark, and
the other lines are the answer. ``make golden`` writes the answers that the code gives now: look at the difference before you commit it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

_is_written = False
"""The answers are written and not compared: ``pytest --golden``."""
_CASES = re.compile(r"\n\n(?=[>#])")


def write_answers(is_wanted: bool) -> None:
    global _is_written
    _is_written = is_wanted


@dataclass(frozen=True, slots=True)
class Case:
    path: Path
    place: int
    given: str
    answer: str

    def check(self, answer: str) -> None:
        """Compare the answer with that of the file, or write it there."""
        __tracebackhide__ = True
        answer = "\n".join(line.rstrip() for line in answer.rstrip("\n").split("\n"))
        if not _is_written:
            assert answer == self.answer, f"{self.path.name}: make golden writes the new answer"
            return
        parts = _parts(self.path)
        remarks, asked, _ = _split(parts[self.place])
        parts[self.place] = "\n".join([*remarks, *asked, *([answer] if answer else [])])
        self.path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _parts(path: Path) -> list[str]:
    return _CASES.split(path.read_text(encoding="utf-8").rstrip("\n"))


def _split(part: str) -> tuple[list[str], list[str], list[str]]:
    """The remarks, the lines that are given, and the answer."""
    lines = part.split("\n")
    remarks = list(takewhile(lambda line: line.startswith("#"), lines))
    given = list(takewhile(lambda line: line.startswith(">"), lines[len(remarks) :]))
    return remarks, given, lines[len(remarks) + len(given) :]


def read(path: Path) -> list[Case]:
    found = []
    for place, part in enumerate(_parts(path)):
        _, given, answer = _split(part)
        text = "\n".join(line.removeprefix(">").removeprefix(" ") for line in given)
        found.append(Case(path, place, text, "\n".join(answer)))
    return found


def cases(name: str) -> pytest.MarkDecorator:
    """Run a test with each `case` of a file in the directory of the test."""
    found = read(Path(inspect.stack()[1].filename).parent / name)
    shown = [" ".join(case.given.split())[:60].encode("ascii", "replace").decode() for case in found]
    return pytest.mark.parametrize("case", found, ids=[f"{case.place}: {text}" for case, text in zip(found, shown, strict=True)])
