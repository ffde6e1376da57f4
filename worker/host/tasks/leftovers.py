"""Seeing to it that nothing is left of a task: what it has left behind is swept, and what not even SIGKILL ends is told.

A process in state D (uninterruptible sleep, as of one whose NFS server or GPU's driver does not answer) sees no signal until the kernel
lets it go. Nobody can end it, and nobody may wait for it for ever: a task is given up after `OUTLIVED_S`, and its end is said once, then.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from ...clock import patience
from ...fast_dataclass import dataclass
from ..loop import Loop
from . import process_state, processes

LOOK_S = 0.02
GRACE_S = 1.0
"""How long what a task left behind may take to end after SIGTERM."""
GIVE_UP_S = 5.0
"""How long after SIGKILL what a task left behind is waited for."""
OUTLIVED_S = patience(60.0)
"""How long after its SIGKILL a task is given up. The kernel may take its time: hundreds of gigabytes of memory, eight GPUs."""


@dataclass(slots=True)
class _Leftovers:
    """Of a task that has ended. `marks`: what their environment holds; `by`: when they have to be gone, by the monotonic clock;
    `warned`: those that were sent SIGTERM."""

    marks: Collection[bytes]
    by: float
    warned: set[int] = field(default_factory=set)


class Sweeper:
    """Ends what tasks that have ended left behind.

    `tasks`: all that are not swept yet, by the pid of their first process. `templates()` gives the children of the agent that are no
    task's. `forget(pid, left)` is called when nothing is left of a task; `left` names, in words, the processes that SIGKILL has not ended.
    """

    def __init__(
        self,
        loop: Loop,
        tasks: Mapping[int, object],
        templates: Callable[[], set[int]],
        forget: Callable[[int, str], None],
    ) -> None:
        self._loop, self._tasks, self._templates, self._forget = loop, tasks, templates, forget
        self._killed: dict[int, object] = {}
        """The tasks that have been sent SIGKILL and have not ended, each with a mark of its own: a pid may come again."""
        self._ended: dict[int, _Leftovers] = {}
        self._given_up: set[int] = set()
        """Children of ours that are not swept (any more)."""
        self._look_at = math.inf

    def leave(self, pids: Collection[int]) -> None:
        """These are no task's, and have been killed as far as that is possible."""
        self._given_up.update(pids)

    def await_end(self, pid: int) -> None:
        """The task has been sent SIGKILL, and should have ended soon. Told again: the first time counts."""
        if pid not in self._killed:
            mark = self._killed[pid] = object()
            self._loop.after(OUTLIVED_S, lambda: self._give_up(pid) if self._killed.get(pid) is mark else None)

    def _give_up(self, pid: int) -> None:
        del self._killed[pid]
        left = {pid} | processes.members(pid)
        self._given_up |= left
        self._forget(pid, _describe(pid, left))

    def begin(self, pid: int, marks: Collection[bytes], kill_at: float | None) -> None:
        """The task has ended. `marks`: variables of its environment that no other task has, ``KEY=value``; `kill_at`: when it would
        have been killed, by the monotonic clock; None: it was not to be stopped."""
        self._killed.pop(pid, None)
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
        strays = processes.find_strays(set(self._tasks) | self._templates() | self._given_up)
        for pid, found in list(self._ended.items()):
            left = self._sweep(pid, found, pid in empty, strays)
            if left is not None:
                del self._ended[pid]
                self._given_up |= left
                self._forget(pid, _describe(pid, left))
        if self._ended:
            self._look_soon(LOOK_S)

    def _sweep(self, pid: int, found: _Leftovers, is_empty: bool, strays: Mapping[int, frozenset[bytes] | None]) -> set[int] | None:
        """What is left although all has been done; None: that is not known yet."""
        # The last task answers for those as well that have dropped our variables, and cannot be told apart by them.
        marks = found.marks if len(self._tasks) > 1 else ()
        left = {stray for stray, environment in strays.items() if environment is not None and environment.issuperset(marks)}
        unclear = {stray for stray, environment in strays.items() if environment is None}  # whose they are is mostly seen in a moment
        now = time.monotonic()
        overdue = now >= found.by
        due = left - found.warned if not overdue else left if marks else left | unclear
        for stray in due:
            processes.signal_one(stray, signal.SIGKILL if overdue else signal.SIGTERM)
        found.warned |= left
        if overdue and not is_empty:
            processes.signal_group(pid, signal.SIGKILL)
        if is_empty and not left | unclear:
            return set()
        if now < found.by + GIVE_UP_S:
            return None
        self._given_up |= unclear
        return left | processes.members(pid)

    def _look_soon(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if at < self._look_at:
            self._look_at = at
            self._loop.after(seconds, self._look_on_time)

    def _look_on_time(self) -> None:
        if time.monotonic() >= self._look_at:  # if not, an earlier one was asked for after this one
            self.look()


def _describe(task: int, pids: set[int]) -> str:
    """These processes in words, ``pid 7, waiting in the kernel …``. `task`: the pid of the task's first one."""
    # What has ended waits for its parent, one of the others.
    found = [(pid, process_state.what_holds(pid)) for pid in sorted(pids) if pid == task or process_state.state_of(pid) not in ("Z", "")]
    return "; ".join(f"pid {pid}, {held}" if held else f"pid {pid}" for pid, held in found)
