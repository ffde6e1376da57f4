"""Whether the kernel has killed a task because memory ran out. Only the kernel's own counters are believed.

The kernel counts each kill in the memory cgroup of the process that it kills, whether the limit of that group or the memory of the
whole machine is used up, and does so before it sends the SIGKILL (`__oom_kill_process` in mm/oom_kill.c): line ``oom_kill`` of
``memory.oom_control`` (v1) or ``memory.events`` (v2; there the groups above count the kill too). Tasks are in the cgroup of their agent,
so the agent reads its own counter before and after. The counter does not name the process: it may have been a child of the task.
"""

from __future__ import annotations

import os
import time

from ...fast_dataclass import dataclass
from ..host_facts import CGROUPS

_NO_LIMIT = 1 << 60
"""v1 writes a huge number for no limit (PAGE_COUNTER_MAX, about 2**63)."""
WINDOW_S = 10.0
"""How long after the kernel's kill a process with much memory may take to end."""


@dataclass(frozen=True, slots=True)
class Group:
    """A memory cgroup."""

    directory: str
    counter: str
    """The name of the file that holds the number of kills."""
    limit: str
    """The name of the file that holds the limit in bytes."""

    def count_kills(self) -> int | None:
        """How often the kernel has killed a process of the group; None: the counter cannot be read."""
        try:
            with open(os.path.join(self.directory, self.counter)) as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
        except (OSError, ValueError):
            return None


class OomCounter:
    """Counts the kills in this process's own memory cgroup. `poll` is to be called about once a second."""

    def __init__(self, proc: str = "/proc/self", cgroups: str = CGROUPS) -> None:
        self._group = find_group(proc, cgroups)
        self._seen = self._group.count_kills() if self._group is not None else None
        self._kills: list[float] = []

    def poll(self) -> None:
        """Note new kills, and forget those of more than WINDOW_S ago: they do not explain a process that ends now."""
        if self._group is None:
            return
        count, now = self._group.count_kills(), time.monotonic()
        more = 0 if count is None or self._seen is None else max(0, count - self._seen)
        self._kills = [at for at in self._kills if now - at < WINDOW_S] + [now] * more
        self._seen = self._seen if count is None else count

    def claim(self) -> str:
        """Whether a kill explains a task that was just ended by SIGKILL, in words; empty if none does. Each kill explains one task."""
        self.poll()
        if not self._kills or self._group is None:
            return ""
        self._kills.pop(0)
        limit = _read_number(os.path.join(self._group.directory, self._group.limit))
        shown = f" (limit {limit / 2**20:,.0f} MiB)" if limit is not None and limit < _NO_LIMIT else ""
        return f"the kernel killed a process in its memory cgroup{shown}"


def find_group(proc: str = "/proc/self", cgroups: str = CGROUPS) -> Group | None:
    """The memory cgroup of a process; None where there is none, or where kills are not counted. `cgroups`: where all groups are."""
    try:
        with open(os.path.join(proc, "cgroup")) as file:
            paths = {names: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in file)}
    except (OSError, ValueError):
        return None
    memory = next((path for names, path in paths.items() if "memory" in names.split(",")), "/")
    for base, path, counter, limit in (
        (cgroups, paths.get("", "/"), "memory.events", "memory.max"),
        (os.path.join(cgroups, "memory"), memory, "memory.oom_control", "memory.limit_in_bytes"),
    ):
        # A container often has its own group at `base`, while `path` is the one that the machine outside uses.
        for directory in (os.path.join(base, path.lstrip("/")), base):
            group = Group(directory, counter, limit)
            if group.count_kills() is not None:
                return group
    return None


def _read_number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # v2 writes "max"
        return None
