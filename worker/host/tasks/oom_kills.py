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


class OomCounter:
    """Counts the kills in this process's own memory cgroup. `poll` is to be called about once a second."""

    def __init__(self, proc: str = "/proc/self") -> None:
        self._group = find_group(proc)
        self._seen = self._count()
        self._kills: list[float] = []

    def poll(self) -> None:
        """Note new kills, and forget those of more than WINDOW_S ago: they do not explain a process that ends now."""
        count, now = self._count(), time.monotonic()
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

    def _count(self) -> int | None:
        """None: the counter cannot be read."""
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
    """The memory cgroup of a process; None where there is none, or where kills are not counted."""
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
    """A container may see its own group as the root of the mount, while `path` is the one that the machine outside uses."""
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
