"""The processor cores that this process may use. The controller and the agents count them in the same way."""

from __future__ import annotations

import os


def count_cores() -> int:
    """The number of cores that this process may use: in a container or a Slurm step not all cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
