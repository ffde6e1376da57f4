"""Reads what the kernel tells of this machine in small files, and in those of the control group of this process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

CGROUPS = "/sys/fs/cgroup"
"""Where Linux shows its control groups: those of version 2; those of version 1 are in a directory for each controller below."""


def group_files(kinds: Iterable[str], name: str, name_1: str, proc: str, cgroups: str) -> list[str]:
    """The places of a file of this process's control group. `kinds`: the directories of its controller in version 1, with `name_1` inside.

    A container often has its own group at the top of what it sees, while /proc names the path that the machine outside uses.
    """
    lines = (line.split(":", 2) for line in text_of(os.path.join(proc, "cgroup")).splitlines() if line.count(":") > 1)
    paths = {name: path for _, controllers, path in lines for name in controllers.split(",")}
    version_1 = [(os.path.join(cgroups, kind), paths.get(kind.partition(",")[0], "/"), name_1) for kind in kinds]
    places = [(cgroups, paths.get("", "/"), name), *version_1]
    return [os.path.join(place, inside, file) for place, path, file in places for inside in (path.lstrip("/"), "")]


def text_of(path: str) -> str:
    """The text of such a file; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 20)
    except (OSError, ValueError):
        return ""


def memory() -> tuple[int, int]:
    """Bytes in all, and available bytes; in a container, the control group limits both."""
    found = {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+): +(\d+) kB$", text_of("/proc/meminfo"), re.MULTILINE)}
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    for group, limit, usage, cache in (
        (CGROUPS, "memory.max", "memory.current", "inactive_file"),
        (f"{CGROUPS}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most = text_of(f"{group}/{limit}").strip()
        if most.isdigit() and int(most) < total:
            # The usage includes pages of files that are not in use; the kernel frees them first (cgroup-v2.rst, cgroup-v1/memory.rst).
            pages = re.search(rf"^{cache} (\d+)$", text_of(f"{group}/memory.stat"), re.MULTILINE)
            used = max(0, int(text_of(f"{group}/{usage}").strip() or 0) - int(pages[1] if pages else 0))
            total, free = int(most), min(free, max(0, int(most) - used))
    return total, free
