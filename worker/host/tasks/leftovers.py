"""Ends what tasks leave behind: the rest of a task's group when its first process has exited, and strays with the host's last task.

Strays are processes that tasks have put into sessions of their own. This process, a subreaper, inherits strays, and cannot tell which task
they come from.

A process in state D (uninterruptible sleep: its NFS server or GPU driver does not answer) receives no signal until the kernel lets the
process go. No signal can end such a process, so `poll` waits for GIVE_UP_S only.
"""

from __future__ import annotations

import time
from collections.abc import Collection
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

    deadline: float
    """When what is left gets SIGKILL, by the monotonic clock."""
    warned: set[int] = field(default_factory=set)
    """The strays that were sent SIGTERM."""


class Leftovers:
    """What exited tasks have left on this host. Call `poll` when a child has ended, and every POLL_S until nothing is left."""

    def __init__(self) -> None:
        self._exited: dict[int, _Exited] = {}
        """By the pid of the task's first process, which is also the task's process group."""
        self._ignored: set[int] = set()
        """Children that are not, or no longer, to be ended."""

    @property
    def is_empty(self) -> bool:
        """Nothing of any exited task is left."""
        return not self._exited

    def ignore(self, pids: Collection[int]) -> None:
        """These children belong to no task, or have been killed in vain."""
        self._ignored.update(pids)

    def add(self, pid: int, kill_at: float | None) -> None:
        """The first process of a task has exited; send SIGTERM to the rest of its group.

        `kill_at`: when the task would have been sent SIGKILL, by the monotonic clock; None: no order to stop had come.
        """
        deadline = time.monotonic() + GRACE_S
        self._exited[pid] = _Exited(deadline if kill_at is None else min(deadline, kill_at))
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
        strays = process_state.children() - {*tasks, *templates, *self._ignored}
        done: dict[int, str] = {}
        for pid, exited in list(self._exited.items()):
            is_last = set(tasks) - done.keys() == {pid}
            remaining = self._end(pid, exited, strays if is_last else set(), is_empty=pid in empty)
            if remaining is not None:
                del self._exited[pid]
                self._ignored |= remaining
                done[pid] = describe(pid, remaining)
        return done

    def _end(self, pid: int, exited: _Exited, strays: set[int], *, is_empty: bool) -> set[int] | None:
        """Signal what one task has left, and these strays. Returns the processes that SIGKILL did not end; None: some may still end."""
        now = time.monotonic()
        if now < exited.deadline:
            for stray in strays - exited.warned:
                process_groups.signal_process(stray, SIGTERM)
            exited.warned |= strays
        else:
            for stray in strays:
                process_groups.signal_process(stray, SIGKILL)
            if not is_empty:
                process_groups.signal_group(pid, SIGKILL)
        if is_empty and not strays:
            return set()
        if now < exited.deadline + GIVE_UP_S:
            return None
        return strays | process_groups.members(pid)


def describe(task: int, pids: Collection[int]) -> str:
    """These processes in words, ``pid 7, waiting in the kernel …``. `task`: the pid of the task's first process."""
    # A zombie waits for its parent, which is another one of these processes. Only the task's first process is named even so.
    named = [pid for pid in sorted(pids) if pid == task or process_state.state_of(pid) not in ("Z", "")]
    found = [(pid, process_state.describe_block(pid)) for pid in named]
    return "; ".join(f"pid {pid}, {block}" if block else f"pid {pid}" for pid, block in found)
