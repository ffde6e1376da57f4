"""The words that users bring from other programs, and the answers of orch: one table, `other_words.csv`."""

from __future__ import annotations

import functools
from pathlib import Path

PATH = Path(__file__).with_name("other_words.csv")
KINDS = {
    "command": "a command of another launcher; the command of orch that means the same",
    "no command": "a command of another launcher, for what orch does in another way",
    "no option": "an option of another launcher, for what orch does in another way",
    "no option of orch": "the same for options that a script may have, too",
    "no option of a command": "the same for an option of one command",
    "no value": "an option without a value, to which a user of another launcher may give one",
    "failure": "a word for a failure; the word of its heading in docs/why.md",
    "page": "a subject of `orch help`; its page, and a word of the heading, where the subject is not this word",
    "exit code": "an exit code; its meaning",
}


@functools.cache
def rows() -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """The rows: a kind, the words, the answer."""
    import csv  # a command line without a mistake needs no table

    with PATH.open(encoding="utf-8", newline="") as file:
        return tuple((row["kind"], tuple(row["words"].split(", ")), row["answer"]) for row in csv.DictReader(file))


@functools.cache
def answers(kind: str) -> dict[str, str]:
    return {word: answer for one, words, answer in rows() if one == kind for word in words}
