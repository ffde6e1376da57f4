"""Reads what the kernel counts for a process and for the host: /proc, and the files of a control group.

Each function returns zeros, or None for a process that is gone, where the kernel does not tell. A file of /proc takes some 10 µs; only
`read_own_memory` is slow (20 ms for a process with TensorFlow), because the kernel walks over all pages of the process.
"""

from __future__ import annotations

import os
import time

from ...values.fast_dataclass import dataclass

_TICK_S = 1.0 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST = 64 * 1024
"""The most bytes that are read of one file."""


def now() -> float:
    """The clock of the kernel's start times: seconds since the host began, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    state: str
    started_at: float
    """By the clock of `now`. With the pid, this tells a process from a later one of the same pid."""
    cpu_s: float
    threads: int
    faults: int
    memory: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class HostCounts:
    """Holds what the kernel has counted for the host since it began, and the memory that is in use now."""

    cpu_s: float = 0.0
    cores: int = 0
    memory: int = 0
    memory_total: int = 0
    swap: int = 0
    received: int = 0
    sent: int = 0


def read_process(pid: int, proc: str = "/proc") -> ProcessCounts | None:
    """The counts of a process; None if it is gone. proc_pid_stat(5), proc_pid_io(5)."""
    text = _read(f"{proc}/{pid}/stat")
    # The second field, the name in parentheses, may hold parentheses and blanks.
    fields = text.rpartition(b")")[2].split()
    try:
        state, faults, cpu, threads = fields[0].decode(), int(fields[9]), int(fields[11]) + int(fields[12]), int(fields[17])
        started_at, memory = int(fields[19]) * _TICK_S, int(fields[21]) * _PAGE
    except (IndexError, ValueError):
        return None
    read = written = 0
    for line in _read(f"{proc}/{pid}/io").splitlines():
        name, _, value = line.partition(b": ")
        if name == b"rchar":
            read = int(value)
        elif name == b"wchar":
            written = int(value)
    return ProcessCounts(state, started_at, cpu * _TICK_S, threads, faults, memory, read, written)


def read_children(pid: int, proc: str = "/proc") -> list[int]:
    """The processes that the main thread of a process has started, and theirs; those of its other threads would cost a read for each."""
    found: list[int] = []
    pending = [pid]
    while pending and len(found) < 64:
        parent = pending.pop()
        children = [int(word) for word in _read(f"{proc}/{parent}/task/{parent}/children").split()]
        found += children
        pending += children
    return found


def read_own_memory(pid: int, proc: str = "/proc") -> int:
    """The proportional memory of a process (PSS) in bytes; 0: unknown."""
    for line in _read(f"{proc}/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def read_host(proc: str = "/proc") -> HostCounts:
    """The counts of the host. proc_stat(5), proc_meminfo(5), proc_net(5)."""
    try:
        lines = _read(f"{proc}/stat").splitlines()
        busy = [int(word) for word in lines[0].split()[1:9]] if lines else [0] * 8
        cores = sum(line.startswith(b"cpu") for line in lines) - 1
        memory = {line.split(b":")[0]: int(line.split()[1]) * 1024 for line in _read(f"{proc}/meminfo").splitlines() if b"kB" in line}
        received = sent = 0
        for line in _read(f"{proc}/net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(b":")
            if name.strip() != b"lo":
                received, sent = received + int(numbers.split()[0]), sent + int(numbers.split()[8])
    except (ValueError, IndexError):
        return HostCounts()
    total, free = memory.get(b"MemTotal", 0), memory.get(b"MemAvailable", 0)
    cpu_s = (sum(busy) - busy[3] - busy[4]) * _TICK_S  # without idle and iowait
    return HostCounts(cpu_s, max(0, cores), total - free, total, memory.get(b"SwapTotal", 0) - memory.get(b"SwapFree", 0), received, sent)


def read_stalls(proc: str = "/proc") -> tuple[float, float, float]:
    """The percentage of the last ten seconds in which some process waited for a core, for memory, for a disk (proc_pressure(5))."""

    def share(name: str) -> float:
        words = _read(f"{proc}/pressure/{name}").split()
        return next((float(word[6:]) for word in words if word.startswith(b"avg10=")), 0.0)

    try:
        return share("cpu"), share("memory"), share("io")
    except ValueError:
        return 0.0, 0.0, 0.0


def _read(path: str) -> bytes:
    """The contents of a file; empty if it cannot be read. Without a file object, which costs as much as the read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)
