"""What tasks leave behind is swept: children in their groups, or in sessions of their own."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from . import processes
from .loop import Loop

LOOK_S = 0.02
GRACE_S = 1.0
"""How long what a task left behind may take to end after SIGTERM."""
GIVE_UP_S = 5.0


@dataclass(slots=True)
class _Leftovers:
    """Of a task that has ended. `marks`: what their environment holds; `by`: when they have to be gone, by the monotonic clock;
    `warned`: those that were sent SIGTERM."""

    marks: Collection[bytes]
    by: float
    warned: set[int] = field(default_factory=set)


class Sweeper:
    """Ends what tasks that have ended left behind.

    `tasks`: all that are not swept yet, by the pid of their first process; `templates` tells which other children of ours are none of
    this; `forget` is called with the pid of a task of which nothing is left.
    """

    def __init__(self, loop: Loop, tasks: Mapping[int, object], templates: Callable[[], set[int]], forget: Callable[[int], None]) -> None:
        self._loop, self._tasks, self._templates, self._forget = loop, tasks, templates, forget
        self._ended: dict[int, _Leftovers] = {}
        self._look_at = math.inf

    def begin(self, pid: int, marks: Collection[bytes], kill_at: float | None) -> None:
        """The task has ended. `marks`: variables of its environment that no other task has, ``KEY=value``; `kill_at`: when it would
        have been killed, by the monotonic clock; None: it was not to be stopped."""
        by = time.monotonic() + GRACE_S
        self._ended[pid] = _Leftovers(marks, by if kill_at is None else min(by, kill_at))
        processes.signal_group(pid, signal.SIGTERM)
        self._look_soon(0)

    def hurry(self, pid: int) -> None:
        """What a task has left behind has to be gone now."""
        found = self._ended.get(pid)
        if found is not None:
            found.by = min(found.by, time.monotonic())
            self._look_soon(0)

    def look(self) -> None:
        """End what ended tasks have left behind; forget those of which nothing is left."""
        self._look_at = math.inf
        if not self._ended:
            return
        # In this order: who leaves a group, and its parent, after the first look is seen by the second.
        empty = {pid for pid in self._ended if processes.group_is_empty(pid)}
        strays = processes.find_strays(set(self._tasks) | self._templates())
        for pid, found in list(self._ended.items()):
            if self._sweep(pid, found, pid in empty, strays):
                del self._ended[pid]
                self._forget(pid)
        if self._ended:
            self._look_soon(LOOK_S)

    def _sweep(self, pid: int, found: _Leftovers, is_empty: bool, strays: Mapping[int, frozenset[bytes]]) -> bool:
        """Whether that is all that can be done."""
        # The last task answers for those as well that have dropped our variables, and cannot be told apart by them.
        marks = found.marks if len(self._tasks) > 1 else ()
        left = {stray for stray, environment in strays.items() if environment.issuperset(marks)}
        now = time.monotonic()
        overdue = now >= found.by
        for stray in left if overdue else left - found.warned:
            processes.signal_one(stray, signal.SIGKILL if overdue else signal.SIGTERM)
        found.warned |= left
        if overdue and not is_empty:
            processes.signal_group(pid, signal.SIGKILL)
        return (is_empty and not left) or now >= found.by + GIVE_UP_S

    def _look_soon(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if at < self._look_at:
            self._look_at = at
            self._loop.after(seconds, self._look_on_time)

    def _look_on_time(self) -> None:
        if time.monotonic() >= self._look_at:  # if not, an earlier one was asked for after this one
            self.look()
