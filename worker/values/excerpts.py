"""Shortens long exceptions: the beginning and the end stay, and a line between them says how much was left out.

A message may contain a whole tensor. The whole text is in the task's own ``stderr.log``. Everything else that repeats an exception
(``error.json``, frames, ``events.jsonl``, ``result.json``, report, console) follows these rules. Pure: no I/O, no clock.
"""

from __future__ import annotations

LIMIT = 16_384
"""Longest message and longest traceback that are kept, in characters."""
LINE = 1_000
"""Longest line of an exception that is shown, in characters."""
WHERE = "stderr.log has it all"


def shorten(text: str, limit: int = LIMIT) -> str:
    """The text; without its middle if it has more than about `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[... orch left out {len(text) - limit} characters: {WHERE} ...]\n{text[-(limit // 2) :]}"


def shorten_line(line: str, limit: int = LINE) -> str:
    """As `shorten`, for one line. The result is one line, too. What is no longer than the words about it is not left out."""
    note = f" … {len(line) - limit:,} characters left out … "
    if len(line) <= limit + len(note):
        return line
    tail = limit // 5
    return f"{line[: limit - tail]}{note}{line[-tail:]}"
