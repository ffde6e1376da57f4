"""Tracebacks that say nothing new. A view folds these tracebacks, each to one line; the files keep them.

* A traceback with the same lines as one that another task has shown (but for `noise.without_own`):
  ``the same traceback as worker-0: ValueError: bad``.
* The frames of installed packages in the message of a graph's error.
* The traceback of a task that has lost a peer (`model.cause.peer_errors`): the exception says which one.
* Of what `faulthandler` writes at a crash in native code, all but the stack of the thread that has crashed (`stack_frames`).

A traceback is held until a line comes that is not its own, or until the task has been quiet. Its message may have several lines: these
are known by an indent, by an empty line (itself, or before), or as TensorFlow's. Other lines are shown: a line of the user that is missing
would be worse than a line too many. Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

from worker.values.excerpts import shorten_line

from ...model.cause import graph_errors, peer_errors
from .noise import BODIES, DETAIL, without_own
from .stack_frames import CRASH, belongs_to_crash, ends_crash, of_crash

QUIET_S = 0.5
"""A traceback is over after this many seconds without a further line."""
LONGEST_S = 5.0
"""A traceback is held no longer than this."""
_MOST_LINES = 1000
_MOST_TRACEBACKS = 1000
_MOST_CHARACTERS = 200
_OF_KERAS = re.compile(r"'\w+' sizes: [\d, ]+")
"""Arrays of different lengths: keras/src/trainers/data_adapters/data_adapter_utils.py."""
_HEAD = "Traceback (most recent call last):"


class Tracebacks:
    """The tracebacks in a task's stderr, its lines in order. `shown`: those that tasks of this view have shown, by hash."""

    def __init__(self, task: str, shown: dict[int, str]) -> None:
        self._task, self._shown = task, shown
        self._held: list[str] = []
        self._exception = ""
        """The first line of the exception's message, once it has come."""
        self._begun = self._fed = 0.0
        self.folded = 0
        """The lines that were folded."""

    def fold(self, lines: list[str], now: float) -> list[str]:
        """The lines that are to be shown now, in order; the same list object if these are all."""
        if not lines or not (self._held or _HEAD in lines or any(line.startswith(CRASH) for line in lines)):
            return lines
        shown: list[str] = []
        for line in lines:
            if self._held and (len(self._held) >= _MOST_LINES or not self._belongs(line)):
                shown += self.release()
            if self._held or line == _HEAD or line.startswith(CRASH):
                self._begun = self._begun if self._held else now
                self._held.append(line)
            else:
                shown.append(line)
        self._fed = now
        return shown

    def overdue(self, now: float) -> list[str]:
        """Return what is to be shown of a traceback that has been quiet, or was held for long."""
        return self.release() if now >= min(self._fed + QUIET_S, self._begun + LONGEST_S) else []

    def complete(self) -> list[str]:
        """Return what is to be shown of a traceback whose exception has come."""
        return self.release() if self._exception or ends_crash("".join(self._held[-1:])) else []

    def release(self) -> list[str]:
        """Return what is to be shown of the lines held, which are then forgotten."""
        lines, exception = self._held, self._exception
        self._held, self._exception = [], ""
        if lines and lines[0].startswith(CRASH):
            return self._of_crash(lines)
        if not exception:
            return lines
        key = hash(tuple(map(without_own, lines)))
        other = self._shown.get(key, self._task)
        head = f"the same traceback as {other}" if other != self._task else _after_loss(self._task, lines)
        if head:
            self.folded += len(lines) - 1
            if other != self._task:
                kind, _, message = "\n".join(lines[lines.index(exception) :]).partition(": ")
                exception = f"{kind}: {graph_errors.reason(message)}".splitlines()[0] if message else exception
            return [f"{head}: {shorten_line(exception, _MOST_CHARACTERS)}"]
        if len(self._shown) < _MOST_TRACEBACKS:
            self._shown[key] = other
        short = list(graph_errors.without_frames(lines))
        self.folded += len(lines) - len(short)
        return short

    def _of_crash(self, lines: list[str]) -> list[str]:
        """Return what is to be shown of the lines of a crash."""
        short = of_crash(lines)
        key = hash(tuple(short))
        other = self._shown.get(key, self._task)
        if other != self._task:
            short = [f"the same traceback as {other}: {lines[0]}"]
        elif len(self._shown) < _MOST_TRACEBACKS:
            self._shown[key] = other
        self.folded += len(lines) - len(short)
        return short

    def _belongs(self, line: str) -> bool:
        """True if the line is one of the traceback held."""
        if self._held[0].startswith(CRASH):
            return belongs_to_crash(line, self._held[-1])
        if line == _HEAD:
            is_chained = self._held[-1] == "" and self._held[-2:-1] != [] and self._held[-2] in peer_errors.CHAINED
            self._exception = "" if is_chained else self._exception
            return is_chained
        if not self._exception:
            self._exception = "" if line.startswith(" ") else line
            return True
        own = (re.match(DETAIL, line), re.fullmatch(BODIES["coordination_service"], line), _OF_KERAS.fullmatch(line))
        return line[:1] in ("", " ", "\t") or not self._held[-1] or any(own)


def _after_loss(task: str, lines: list[str]) -> str:
    """Return what a traceback says about a lost peer; empty: nothing, or nothing that names a peer."""
    loss = peer_errors.read(None, "\n".join([*lines, ""]), task)
    if loss is None or not (loss.peers or loss.leader):
        return ""
    return f"the traceback after the loss of {loss.peers[0] if loss.peers else 'the leader'} ({loss.how})"
