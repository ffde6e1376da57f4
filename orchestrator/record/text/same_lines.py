"""A line that several tasks write at about the same time, shown once: ``worker-0..7 | loading the data``.

No line is lost: each line of each task is in exactly one of the lines that are shown, which names all of its tasks. The lines of each task
keep their order. A line is held until all tasks have written it, or for some seconds. Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence

APART_S = 2.0
"""Seconds between the first and the last of equal lines that are shown as one, while a run is followed."""
MOST_HELD = 20_000
"""The most lines that are held; then the oldest are shown."""


class SharedLine:
    """One line of one or more tasks. Two lines with the same text may both be held: a task may write a text again."""

    __slots__ = ("at", "number", "tasks", "text")

    def __init__(self, text: str, at: float, number: int) -> None:
        self.text, self.at, self.number = text, at, number
        self.tasks: list[str] = []


class SameLines:
    """The lines of one stream of all tasks, given in the order in which they are to be shown.

    `tasks`: the names of all tasks, in the order in which a shown line names them. `apart_s`: see `APART_S`.
    """

    def __init__(self, tasks: Collection[str], apart_s: float = APART_S) -> None:
        self._order = {task: place for place, task in enumerate(tasks)}
        self._apart_s = apart_s
        self._held: deque[SharedLine] = deque()
        self._by_text: defaultdict[str, deque[SharedLine]] = defaultdict(deque)
        self._last: dict[str, int] = {}
        """The number of each task's newest line: the next line of the task must have a higher one, or the order would change."""
        self._count = 0

    def add(self, task: str, lines: Sequence[str], at: float) -> list[SharedLine]:
        """`lines`: what the task has written next. `at`: the time, in seconds. Returns the lines that are to be shown now."""
        for text in lines:
            line = self._joined(task, text) or self._new(text, at)
            line.tasks.append(task)
            self._last[task] = line.number
        return self.due(at)

    def _joined(self, task: str, text: str) -> SharedLine | None:
        """The first line held with this text that the task can still join."""
        same = self._by_text.get(text)
        if not same or same[-1].number <= (last := self._last.get(task, -1)):
            return None
        return same[bisect_right(same, last, key=lambda line: line.number)]

    def _new(self, text: str, at: float) -> SharedLine:
        line = SharedLine(text, at, self._count)
        self._count += 1
        self._held.append(line)
        self._by_text[text].append(line)
        return line

    def due(self, now: float) -> list[SharedLine]:
        """The lines that are held no longer at the time `now`: all tasks have written them, or their time is over."""
        return self._taken(
            lambda line: len(line.tasks) == len(self._order) or now - line.at >= self._apart_s or len(self._held) > MOST_HELD
        )

    def release(self) -> list[SharedLine]:
        return self._taken(lambda line: True)

    def _taken(self, is_due: Callable[[SharedLine], bool]) -> list[SharedLine]:
        found = []
        while self._held and is_due(self._held[0]):
            line = self._held.popleft()
            same = self._by_text[line.text]
            same.popleft()  # lines with one text are held in their order, too
            if not same:
                del self._by_text[line.text]
            line.tasks.sort(key=self._order.__getitem__)
            found.append(line)
        return found
