"""Describes how much memory a host has left."""

from __future__ import annotations

import contextlib

_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Of the container, in both versions of control groups."""


def bytes_left() -> int:
    """Return how many bytes the processes of this host, or of its container, can still take."""
    free = [_available()]
    for limit, used in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            free.append(_number(limit) - _number(used))
    return max(0, min(free))


def _available() -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", "rb") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(b"MemAvailable:"))
    return 0


def _number(path: str) -> int:
    with open(path, "rb") as file:
        return int(file.read())
