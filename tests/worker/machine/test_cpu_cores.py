"""The cores of a host, and parts of them."""

from __future__ import annotations

import os

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
