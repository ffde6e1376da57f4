"""Finds whether the kernel has killed a task because memory ran out. Only the kernel's own counters are believed.

The kernel counts each kill in the memory cgroup of the process that it kills, whether the limit of that group or the memory of the
whole machine is used up, and does so before it sends the SIGKILL (`__oom_kill_process` in mm/oom_kill.c): line ``oom_kill`` of
``memory.oom_control`` (v1) or ``memory.events`` (v2; there the groups above count the kill too). Tasks are in the cgroup of their agent,
so the agent reads its own counter before and after. The counter does not name the process: it may have been a child of the task.
"""

from __future__ import annotations

import time

from ..machine.kernel_files import CGROUPS, group_files, text_of

WINDOW_S = 10.0
"""How long after the kernel's kill a process with much memory may take to end."""


class OomCounter:
    """Counts the kills in this process's own memory cgroup. `poll` is to be called about once a second."""

    def __init__(self, proc: str = "/proc/self", cgroups: str = CGROUPS) -> None:
        self._counter = find_counter(proc, cgroups)
        self._seen = _count_kills(self._counter)
        self._kills: list[float] = []

    def poll(self) -> None:
        """Note new kills, and forget those of more than WINDOW_S ago: they do not explain a process that ends now."""
        count, now = _count_kills(self._counter), time.monotonic()
        self._kills = [at for at in self._kills if now - at < WINDOW_S]
        if count is not None:
            self._kills += [now] * (0 if self._seen is None else count - self._seen)
            self._seen = count

    def claim(self) -> str:
        """The kill that explains the end of a task by SIGKILL just now, in words; empty: none. Each kill explains one task."""
        self.poll()
        if not self._kills:
            return ""
        self._kills.pop(0)
        return "the kernel killed a process in its memory cgroup"


def find_counter(proc: str = "/proc/self", cgroups: str = CGROUPS) -> str:
    """The file with the kills in the memory cgroup of a process; empty where none are counted. `cgroups`: where all groups are."""
    places = group_files(("memory",), "memory.events", "memory.oom_control", proc, cgroups)
    return next((place for place in places if _count_kills(place) is not None), "")


def _count_kills(counter: str) -> int | None:
    """Return how often the kernel has killed a process of the group; None: the counter cannot be read."""
    return next((int(line.split()[1]) for line in text_of(counter).splitlines() if line.startswith("oom_kill ")), None)
