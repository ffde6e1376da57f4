"""The cores of a host, and parts of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.machine import cpu_cores


@pytest.mark.parametrize(
    ("part", "parts", "expected"),
    [(0, 1, [0, 4, 1, 5, 2, 6, 3, 7]), (0, 2, [0, 4, 1, 5]), (1, 2, [2, 6, 3, 7]), (2, 3, [2, 6, 3, 7]), (5, 6, [3, 7]), (9, 12, [4])],
)
def test_parts_of_the_cores_do_not_share_a_core_s_hardware_threads(
    monkeypatch: pytest.MonkeyPatch, part: int, parts: int, expected: list[int]
) -> None:
    """Four cores with two threads each, numbered as Linux does: first one thread of each, then the other."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cpu_cores, "_core_of", lambda number: (0, number % 4))
    assert cpu_cores.cores_of(part, parts) == expected


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "odd"}, 8),
    ],
)
def test_a_limit_of_time_counts_as_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu_cores, "QUOTAS", (str(tmp_path / "cpu.max"), str(tmp_path / "cpu.cfs_quota_us")))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpu_cores.count_cores() == cores
