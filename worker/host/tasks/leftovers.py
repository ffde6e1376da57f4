"""Ends what a task leaves behind when its first process has exited: the rest of its group, and processes in sessions of their own.

A process in state D (uninterruptible sleep: its NFS server or GPU driver does not answer) receives no signal until the kernel lets the
process go. No signal can end such a process, so `poll` waits for GIVE_UP_S only.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import field
from signal import SIGKILL, SIGTERM

from ...fast_dataclass import dataclass
from ..processes import process_groups, process_state

POLL_S = 0.02
GRACE_S = 1.0
"""How long a process that was left behind may take to end after SIGTERM."""
GIVE_UP_S = 5.0
"""How long after SIGKILL a process that was left behind is waited for."""


@dataclass(slots=True)
class _Exited:
    """A task whose first process has exited."""

    marks: Collection[bytes]
    """Variables in the environment of the task's processes that together no other task has, each ``KEY=value``."""
    deadline: float
    """When what is left gets SIGKILL, by the monotonic clock."""
    warned: set[int] = field(default_factory=set)
    """The processes that were sent SIGTERM."""


class Leftovers:
    """What exited tasks have left on this host. Call `poll` when a child has ended, and every POLL_S as long as the object is true."""

    def __init__(self) -> None:
        self._exited: dict[int, _Exited] = {}
        """By the pid of the task's first process, which is also the task's process group."""
        self._ignored: set[int] = set()
        """Children that are not, or no longer, to be ended."""

    def __bool__(self) -> bool:
        return bool(self._exited)

    def ignore(self, pids: Collection[int]) -> None:
        """These children belong to no task, or have been killed in vain."""
        self._ignored.update(pids)

    def add(self, pid: int, marks: Collection[bytes], kill_at: float | None) -> None:
        """The first process of a task has exited; send SIGTERM to the rest of its group. `marks`: see `_Exited`.

        `kill_at`: when the task would have been sent SIGKILL, by the monotonic clock; None: no order to stop had come.
        """
        deadline = time.monotonic() + GRACE_S
        self._exited[pid] = _Exited(marks, deadline if kill_at is None else min(deadline, kill_at))
        process_groups.signal_group(pid, SIGTERM)

    def expire(self, pid: int) -> None:
        """Let the deadline of this task's leftovers be now."""
        if (exited := self._exited.get(pid)) is not None:
            exited.deadline = min(exited.deadline, time.monotonic())

    def poll(self, tasks: Collection[int], templates: Collection[int]) -> dict[int, str]:
        """End what is left. Returns the pids of the tasks that are done with, each with the processes that SIGKILL did not end, in words.

        `tasks`: the first processes of all tasks of this host, exited or not; `templates`: the template processes.
        """
        if not self._exited:
            return {}
        # In this order: a process that leaves its group, and whose parent ends, between the two calls is found by the second.
        empty = {pid for pid in self._exited if process_groups.is_empty(pid)}
        strays = process_state.find_strays({*tasks, *templates, *self._ignored})
        done: dict[int, str] = {}
        for pid, exited in list(self._exited.items()):
            is_last = len(tasks) - len(done) == 1
            remaining = self._end(pid, exited, pid in empty, strays, is_last=is_last)
            if remaining is not None:
                del self._exited[pid]
                self._ignored |= remaining
                done[pid] = describe(pid, remaining)
        return done

    def _end(
        self, pid: int, exited: _Exited, is_empty: bool, strays: Mapping[int, frozenset[bytes] | None], *, is_last: bool
    ) -> set[int] | None:
        """Signal what one task has left. Returns the processes that SIGKILL did not end; None: some may still end."""
        # A process that has dropped orch's variables cannot be assigned to a task by them; the last task answers for all of those.
        marks = () if is_last else exited.marks
        left = {stray for stray, environment in strays.items() if environment is not None and environment.issuperset(marks)}
        unclear = {stray for stray, environment in strays.items() if environment is None}  # mostly for a moment only
        now = time.monotonic()
        overdue = now >= exited.deadline
        due = left - exited.warned if not overdue else left if marks else left | unclear
        for stray in due:
            process_groups.signal_process(stray, SIGKILL if overdue else SIGTERM)
        exited.warned |= left
        if overdue and not is_empty:
            process_groups.signal_group(pid, SIGKILL)
        if is_empty and not left | unclear:
            return set()
        if now < exited.deadline + GIVE_UP_S:
            return None
        self._ignored |= unclear
        return left | process_groups.members(pid)


def describe(task: int, pids: Collection[int]) -> str:
    """These processes in words, ``pid 7, waiting in the kernel …``. `task`: the pid of the task's first process."""
    # A zombie waits for its parent, which is another one of these processes. Only the task's first process is named even so.
    named = [pid for pid in sorted(pids) if pid == task or process_state.state_of(pid) not in ("Z", "")]
    found = [(pid, process_state.describe_block(pid)) for pid in named]
    return "; ".join(f"pid {pid}, {block}" if block else f"pid {pid}" for pid, block in found)
