"""What the control group of an agent and its tasks uses: memory, and the time that a limit on CPU time kept the group waiting.

Version 2 has one directory for a group, version 1 one for each controller: ``memory/…`` and ``cpu/…`` or ``cpu,cpuacct/…``. A container
often has its own group at the top of what it sees, while /proc names the path that the machine outside uses.
"""

from __future__ import annotations

import os

from ...values.fast_dataclass import dataclass
from ..host_facts import CGROUPS

_NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2**63 for a group without a limit."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Zero where the kernel does not tell."""

    memory: int = 0
    limit: int = 0
    throttled_s: float = 0.0
    """Since the group was made."""


class ControlGroup:
    """The group of this process. `proc` and `cgroups`: other directories, for tests."""

    def __init__(self, proc: str = "/proc/self", cgroups: str = CGROUPS) -> None:
        paths = _paths(os.path.join(proc, "cgroup"))
        memory, cpu = paths.get("memory", "/"), paths.get("cpu", "/")
        own = [os.path.join(cgroups, paths.get("", "/").lstrip("/")), cgroups]
        memory_v1 = [os.path.join(cgroups, "memory", memory.lstrip("/")), os.path.join(cgroups, "memory")]
        cpu_v1 = [os.path.join(cgroups, kind, cpu.lstrip("/")) for kind in ("cpu", "cpu,cpuacct")] + [os.path.join(cgroups, "cpu")]
        self._memory = _find(own, "memory.current") or _find(memory_v1, "memory.usage_in_bytes")
        self._limit = _find(own, "memory.max") or _find(memory_v1, "memory.limit_in_bytes")
        self._cpu = _find(own, "cpu.stat") or _find(cpu_v1, "cpu.stat")

    def read(self) -> GroupCounts:
        """What the group uses now."""
        limit = _number(self._limit)
        throttled_s = 0.0
        for line in _text(self._cpu).splitlines():
            name, _, value = line.partition(" ")
            if name in ("throttled_usec", "throttled_time") and value.isdigit():
                throttled_s = int(value) / (1e6 if name == "throttled_usec" else 1e9)
        return GroupCounts(_number(self._memory), limit if limit < _NO_LIMIT else 0, throttled_s)


def _paths(path: str) -> dict[str, str]:
    """The path of the group by the name of each controller; that of version 2 has the name ``""``."""
    found = {}
    for line in _text(path).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return found


def _find(directories: list[str], name: str) -> str:
    """The first of these files that can be read; empty if there is none."""
    return next((path for directory in directories if _text(path := os.path.join(directory, name))), "")


def _number(path: str) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(64 * 1024) or b"").decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
