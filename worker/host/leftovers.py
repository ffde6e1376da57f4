"""Kills the processes that tasks leave behind: after the exit of a task's first process, after the grace, and strays last.

Strays are processes that tasks have put into sessions of their own. This process, a subreaper, inherits strays, and cannot tell which task
they come from.

A process in state D (uninterruptible sleep: its NFS server or GPU driver does not answer) receives no signal until the kernel lets the
process go. No signal can end such a process, so nothing waits longer than GIVE_UP_S or OUTLIVED_S for its end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from signal import SIGKILL, SIGTERM

from ..machine import clock
from .processes import process_groups, process_state
from .task import StartedTask

POLL_S = 0.02
GRACE_S = 1.0
"""How long a process that was left behind may take to end after SIGTERM."""
GIVE_UP_S = 5.0
"""How long after SIGKILL a process that was left behind is waited for."""
OUTLIVED_S = clock.patience(60.0)
"""How long after its SIGKILL a task is given up. The kernel may take its time: hundreds of gigabytes of memory, eight GPUs."""


class Sweeper:
    """Call `sweep` when a child has ended or the time of a SIGKILL has come, and every POLL_S while an exited task is not swept."""

    def __init__(self) -> None:
        self._ignored: set[int] = set()
        """Children that are not, or no longer, to be ended."""
        self._warned: set[int] = set()
        """The strays that were sent SIGTERM."""

    def sweep(self, tasks: Mapping[int, StartedTask], others: Collection[int]) -> list[tuple[StartedTask, str]]:
        """End what is left. Returns the tasks that are done with, each with the processes that SIGKILL did not end, in words.

        `tasks`: all tasks of this host, by the pids of their first processes; `others`: children that belong to no task.
        """
        now = time.monotonic()
        due = [task for task in tasks.values() if task.exited or now >= task.kill_at]
        if not due:
            return []
        # In this order: a process that leaves its group, and whose parent ends, between the two lines is found by the second.
        empty = {task.pid for task in due if process_groups.is_empty(task.pid)}
        strays = process_state.children() - {*tasks, *others, *self._ignored}
        done: list[tuple[StartedTask, str]] = []
        for task in due:
            is_last = len(done) == len(tasks) - 1
            left = self._end(task, strays if is_last else set(), is_empty=task.pid in empty)
            if left is not None:
                self._ignored |= left
                done.append((task, _describe(task.pid, left)))
        return done

    def _end(self, task: StartedTask, strays: set[int], *, is_empty: bool) -> set[int] | None:
        """Signal what one task has left, and these strays. Returns the processes that SIGKILL did not end; None: some may still end."""
        overdue_s = time.monotonic() - task.kill_at
        is_due = overdue_s >= 0
        for stray in strays if is_due else strays - self._warned:
            process_groups.signal_process(stray, SIGKILL if is_due else SIGTERM)
        self._warned |= strays
        if is_due and not is_empty:
            process_groups.signal_group(task.pid, SIGKILL)
        if not task.exited:
            return {task.pid} | process_groups.members(task.pid) if overdue_s >= OUTLIVED_S else None
        if is_empty and not strays:
            return set()
        return strays | process_groups.members(task.pid) if overdue_s >= GIVE_UP_S else None


def _describe(task: int, pids: Collection[int]) -> str:
    """These processes in words, ``pid 7, waiting in the kernel …``. `task`: the pid of the task's first process."""
    # A zombie waits for its parent, which is another one of these processes. Only the task's first process is named even so.
    named = [pid for pid in sorted(pids) if pid == task or process_state.state_of(pid) not in ("Z", "")]
    found = [(pid, process_state.describe_block(pid)) for pid in named]
    return "; ".join(f"pid {pid}, {block}" if block else f"pid {pid}" for pid, block in found)
