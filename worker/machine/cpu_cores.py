"""The processor cores that this process may use. The controller and the agents count them in the same way."""

from __future__ import annotations

import math
import os

from .kernel_files import text_of

QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
"""Where a container sees its limit of CPU time, with control groups of version 2 and 1 (Linux's admin-guide/cgroup-v2.rst and
scheduler/sched-bwc.rst): it has the group at the top of what it sees."""


def count_cores() -> int:
    """The number of cores that this process may use: in a container or a Slurm step not all cores of the machine.

    A limit of CPU time, such as that of a pod, counts as its number of cores, rounded up: with more threads the kernel would stop all of
    them for a part of each tenth of a second.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _limit_of_time()
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def _limit_of_time() -> float | None:
    """The limit of CPU time, in cores; None: there is none."""
    both, quota = (text_of(path).split() for path in QUOTAS)
    words = both or [*quota, *text_of(QUOTAS[1].replace("quota", "period")).split()]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # no limit: max, or -1
        return int(words[0]) / int(words[1])
    return None


def cores_of(part: int, parts: int) -> list[int] | None:
    """The cores of this process, divided into `parts`: the hardware threads of the part with the number `part`, from 0.

    Parts never share a core if there are at least `parts` cores, else never a hardware thread, else they overlap. None where CPU affinity
    is not supported.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    threads: dict[tuple[int, int], list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)):
        threads.setdefault(_core_of(number), []).append(number)
    cores = [threads[core] for core in sorted(threads)]
    if parts > len(cores):
        cores = [[number] for core in cores for number in core]
    count = len(cores)
    mine = cores[part * count // parts : (part + 1) * count // parts] if parts <= count else [cores[part % count]]
    return [number for core in mine for number in core]


def _core_of(number: int) -> tuple[int, int]:
    """The package and the core of a hardware thread (Linux's Documentation/admin-guide/cputopology.rst)."""
    found = []
    for name in ("physical_package_id", "core_id"):
        try:
            with open(f"/sys/devices/system/cpu/cpu{number}/topology/{name}") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            found.append(0 if name == "physical_package_id" else number)
    return found[0], found[1]
