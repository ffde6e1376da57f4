"""The counter of what a task reads, as far as it needs no TensorFlow; tests/real/test_input.py has the rest."""

from __future__ import annotations

import os

import pytest

from worker.task.input.input_counter import Counter


def test_a_full_disk_costs_no_descriptors() -> None:
    counter = Counter.__new__(Counter)
    counter._path = "/dev/full"
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"):
            counter._append({"at": 1.0})
    assert len(os.listdir("/proc/self/fd")) == before
