"""Counts how often a limit on CPU time kept the control group of an agent and its tasks waiting.

A limit on CPU time is so many milliseconds in each period, usually of 100 ms. The kernel counts the periods in which the group wanted to
run, and those in which the limit was reached. Its other count, the time that the group was kept waiting (``throttled_usec``), says less:
the kernel adds up the times of all cores, and since Linux 6.18, which lets a thread go on until the thread leaves the kernel, a group that
was kept from two thirds of its time had 4 % there (tried).
"""

from __future__ import annotations

from ...machine.kernel_files import CGROUPS, group_files, text_of
from ...values.fast_dataclass import dataclass


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
        places = group_files(("cpu", "cpu,cpuacct"), "cpu.stat", "cpu.stat", proc, cgroups)
        self._cpu = next((path for path in places if text_of(path)), "")
        """The first of these files that can be read; empty if there is none."""

    def read(self) -> GroupCounts:
        counts = dict(line.partition(" ")[::2] for line in text_of(self._cpu).splitlines())
        periods, throttled = (int(value) if (value := counts.get(name, "")).isdigit() else 0 for name in ("nr_periods", "nr_throttled"))
        return GroupCounts(periods, throttled)
