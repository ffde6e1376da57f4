"""Counts how often a limit on CPU time kept the control group of an agent and its tasks waiting.

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


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Zero where the kernel does not tell."""

    periods: int = 0
    """Periods of the limit on CPU time in which the group wanted to run, since the group was made."""
    throttled: int = 0
    """Those in which the limit was reached."""


class ControlGroup:
    """The group of this process. `proc` and `cgroups`: other directories, for tests."""

    def __init__(self, proc: str = "/proc/self", cgroups: str = CGROUPS) -> None:
        paths = _paths(os.path.join(proc, "cgroup"))
        cpu = paths.get("cpu", "/").lstrip("/")
        own = [os.path.join(cgroups, paths.get("", "/").lstrip("/")), cgroups]
        version_1 = [os.path.join(cgroups, kind, cpu) for kind in ("cpu", "cpu,cpuacct")] + [os.path.join(cgroups, "cpu")]
        places = (os.path.join(place, "cpu.stat") for place in (*own, *version_1))
        self._cpu = next((path for path in places if _text(path)), "")
        """The first of these files that can be read; empty if there is none."""

    def read(self) -> GroupCounts:
        counts = dict(line.partition(" ")[::2] for line in _text(self._cpu).splitlines())
        periods, throttled = (int(value) if (value := counts.get(name, "")).isdigit() else 0 for name in ("nr_periods", "nr_throttled"))
        return GroupCounts(periods, throttled)


def _paths(path: str) -> dict[str, str]:
    """The path of the group by the name of each controller; that of version 2 has the name ``""``."""
    found = {}
    for line in _text(path).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return found


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(64 * 1024) or b"").decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
