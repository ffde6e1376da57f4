"""Did the kernel kill it for want of memory? Its own counters say so, and nothing else is believed.

The kernel counts each kill in the memory cgroup of the process that it chose, whether that group's limit was reached or
the whole machine's, before it sends the SIGKILL (`__oom_kill_process` in mm/oom_kill.c): line ``oom_kill`` of
``memory.oom_control`` (v1) or ``memory.events`` (v2; there ancestors count it too). A task is in its agent's cgroup, so looks there
before and after tell. Which process it was, the counter does not say: it may have been a child of the task.
"""

from __future__ import annotations

import os
import time

from ...fast_dataclass import dataclass

_NO_LIMIT = 1 << 60
"""v1 writes a huge number for no limit (PAGE_COUNTER_MAX, about 2**63)."""
WINDOW_S = 10.0
"""How long after its kill a process with much memory may take to end."""


@dataclass(frozen=True, slots=True)
class Group:
    """A memory cgroup: its directory, and the names of what is read there."""

    directory: str
    counter: str
    limit: str


class OomCounter:
    """The kills in this process's own memory cgroup. `claim` answers for one task that was ended by SIGKILL."""

    def __init__(self, proc: str = "/proc/self") -> None:
        self._group = find_group(proc)
        self._seen = self._count()
        self._kills: list[float] = []

    def look(self) -> None:
        """Now and then: what was counted long ago explains nothing that ends now."""
        count, now = self._count(), time.monotonic()
        more = 0 if count is None or self._seen is None else max(0, count - self._seen)
        self._kills = [at for at in self._kills if now - at < WINDOW_S] + [now] * more
        self._seen = self._seen if count is None else count

    def claim(self) -> str:
        """That the kernel has lately killed one more process of ours, in words; empty if it has not. A kill explains one task."""
        self.look()
        if not self._kills or self._group is None:
            return ""
        self._kills.pop(0)
        limit = _read_number(os.path.join(self._group.directory, self._group.limit))
        shown = f" (limit {limit / 2**20:,.0f} MiB)" if limit is not None and limit < _NO_LIMIT else ""
        return f"the kernel killed a process in its memory cgroup{shown}"

    def _count(self) -> int | None:
        """None: it cannot be read."""
        if self._group is None:
            return None
        try:
            with open(os.path.join(self._group.directory, self._group.counter)) as file:
                for line in file:
                    name, _, number = line.partition(" ")
                    if name == "oom_kill":
                        return int(number)
        except (OSError, ValueError):
            pass
        return None


def find_group(proc: str = "/proc/self") -> Group | None:
    """The memory cgroup of a process; None where there is none, or none whose kills are counted."""
    try:
        with open(os.path.join(proc, "cgroup")) as file:
            paths = {names: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in file)}
        with open(os.path.join(proc, "mountinfo")) as file:
            mounts = [mount for mount in map(_parse_mount, file) if mount is not None]
    except (OSError, ValueError):
        return None
    memory = next((names for names in paths if "memory" in names.split(",")), None)
    for kind, options, root, point in mounts:
        if kind == "cgroup" and memory is not None and "memory" in options.split(","):
            found = _at(point, root, paths[memory], "memory.oom_control", "memory.limit_in_bytes")
        elif kind == "cgroup2" and memory is None and "" in paths:
            found = _at(point, root, paths[""], "memory.events", "memory.max")
        else:
            continue
        if found is not None:
            return found
    return None


def _parse_mount(line: str) -> tuple[str, str, str, str] | None:
    """(file system, its options, the root of the mount, the mount point) of a line of proc_pid_mountinfo(5)."""
    before, dash, after = line.rstrip("\n").partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not dash or len(left) < 5 or len(right) < 3:
        return None
    return right[0], right[2], left[3], left[4].encode().decode("unicode_escape")


def _at(point: str, root: str, path: str, counter: str, limit: str) -> Group | None:
    """A container may see its own group as the root of the mount, under a path that only the machine outside knows."""
    inside = path[len(root.rstrip("/")) :] if path.startswith(root.rstrip("/") + "/") or path == root else path
    for directory in (os.path.join(point, inside.lstrip("/")), point):
        try:
            with open(os.path.join(directory, counter)) as file:
                if any(line.startswith("oom_kill ") for line in file):
                    return Group(directory, counter, limit)
        except OSError:
            continue
    return None


def _read_number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # v2 writes "max"
        return None
