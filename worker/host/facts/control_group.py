"""Defines what the control group of an agent and its tasks uses: memory, and how often a limit on CPU time kept the group waiting.

A limit on CPU time is so many milliseconds in each period, usually of 100 ms. The kernel counts the periods in which the group wanted to
run, and those in which the limit was reached. Its other count, the time that the group was kept waiting (``throttled_usec``), says less:
the kernel adds up the times of all cores, and since Linux 6.18, which lets a thread go on until the thread leaves the kernel, a group that
was kept from two thirds of its time had 4 % there (tried).
Version 2 has one directory for a group, version 1 one for each controller: ``memory/…`` and ``cpu/…`` or ``cpu,cpuacct/…``. A container
often has its own group at the top of what it sees, while /proc names the path that the machine outside uses.
"""

from __future__ import annotations

import os

from ...values.fast_dataclass import dataclass
from .host_facts import CGROUPS

_NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2**63 for a group without a limit."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Zero where the kernel does not tell."""

    memory: int = 0
    limit: int = 0
    periods: int = 0
    """Periods of the limit on CPU time in which the group wanted to run, since the group was made."""
    throttled: int = 0
    """Those in which the limit was reached."""


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
        limit = _number(self._limit)
        counts = dict(line.partition(" ")[::2] for line in _text(self._cpu).splitlines())
        periods, throttled = (int(value) if (value := counts.get(name, "")).isdigit() else 0 for name in ("nr_periods", "nr_throttled"))
        return GroupCounts(_number(self._memory), limit if limit < _NO_LIMIT else 0, periods, throttled)


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
