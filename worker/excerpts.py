"""Shortens long exceptions: the beginning and the end stay, and a line between them says how much was left out.

A tensor in an exception's message is printed as an array of many rows, and a message may have any length. The whole text is in the task's
own ``stderr.log``. Everything else that repeats an exception (``error.json``, frames, ``events.jsonl``, ``result.json``, report, console)
follows these rules. Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections import deque

LIMIT = 16_384
"""Longest message and longest traceback that are kept, in characters."""
LINE = 1_000
"""Longest line of an exception that is shown, in characters."""
ROWS_SHOWN = 3
"""This many rows are shown at the beginning of an array, and as many at its end."""

WHERE = "stderr.log has it all"
_HEADING = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# Numbers and brackets, as NumPy and TensorFlow print arrays.
_ROW = re.compile(r"(?:[\s\[\](),.\d+-]|\be[+-]|inf|nan|True|False)+")
# The beginning of a logger's line: the program continues after an exception that it has logged.
_RECORD = re.compile(r"[IWEF]\d{4} \d|\d{4}-\d\d-\d\d|\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


def shorten(text: str, limit: int = LIMIT) -> str:
    """The text; without its middle if it has more than about `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[... orch left out {len(text) - limit} characters: {WHERE} ...]\n{text[-(limit // 2) :]}"


def shorten_line(line: str, limit: int = LINE) -> str:
    """As `shorten`, for one line. The result is one line, too."""
    if len(line) <= limit:
        return line
    tail = limit // 5
    return f"{line[: limit - tail]} … {len(line) - limit:,} characters left out … {line[-tail:]}"


def _note(count: int, what: str) -> str:
    return f"… {count:,} {what}{'s' if count > 1 else ''} left out: {WHERE} …"


class TracebackExcerpt:
    """Shortens the messages of exceptions in a stream of lines, and leaves all other lines as they are. Each stream needs its own object.

    A message begins after the frames of a traceback, and ends where the next traceback or a logger's line begins. Of an array, the first
    and the last `ROWS_SHOWN` rows are shown. Of a message, the first `most - tail` lines, with at most `most_characters`, and the last
    `tail` lines are shown.
    """

    __slots__ = ("_count", "_held", "_last", "_most", "_most_characters", "_rows", "_rows_after", "_size", "_state")

    def __init__(self, most: int, most_characters: int, tail: int = 10) -> None:
        self._most, self._most_characters = most - tail, most_characters
        self._state = ""
        self._rows = 0
        self._rows_after: deque[str] = deque(maxlen=ROWS_SHOWN)
        self._count = self._size = self._held = 0
        self._last: deque[str] = deque(maxlen=tail)

    def feed(self, lines: list[str]) -> list[str]:
        """Add the next lines. Returns the lines to be shown: the same list object if there is no exception."""
        if not self._state and _HEADING not in lines:
            return lines
        shown: list[str] = []
        for line in lines:
            self._add(line, shown)
        return shown

    def end(self) -> list[str]:
        """The message is over. Returns the lines that were held back."""
        shown: list[str] = []
        if self._state == "message":
            self._end_message(shown)
        return shown

    def _add(self, line: str, shown: list[str]) -> None:
        if self._state == "message" and (line == _HEADING or line in _CHAINED or _RECORD.match(line)):
            self._end_message(shown)
        if line == _HEADING:
            self._state = "frames"
        elif self._state == "frames" and line[:1] != " ":
            self._state = "message"
        if self._state != "message":
            shown.append(shorten_line(line) if self._state else line)
        elif _ROW.fullmatch(line):
            self._rows += 1
            if self._rows <= ROWS_SHOWN:
                self._show(line, shown)
            else:
                self._rows_after.append(line)
        else:
            self._end_rows(shown)
            self._show(line, shown)

    def _end_rows(self, shown: list[str]) -> None:
        left_out = self._rows - ROWS_SHOWN - len(self._rows_after)
        if left_out > 0:
            self._show(_note(left_out, "row"), shown)
        for line in self._rows_after:
            self._show(line, shown)
        self._rows_after.clear()
        self._rows = 0

    def _show(self, line: str, shown: list[str]) -> None:
        line = shorten_line(line)
        if not self._held and self._count < self._most and self._size + len(line) <= self._most_characters:
            self._count += 1
            self._size += len(line)
            shown.append(line)
        else:
            self._held += 1
            self._last.append(line)

    def _end_message(self, shown: list[str]) -> None:
        self._end_rows(shown)
        if self._held > len(self._last):
            shown.append(_note(self._held - len(self._last), "line"))
        shown.extend(self._last)
        self._last.clear()
        self._count = self._size = self._held = 0
        self._state = ""
