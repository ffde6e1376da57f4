"""Files of output that are read as they grow."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.record import follower
from orchestrator.record.follower import Follower, tail_offset


def test_a_hole_of_a_terabyte_in_a_file_is_not_read(tmp_path: Path) -> None:
    """As a task makes that sets the size of its own stdout."""
    path = tmp_path / "stdout.log"
    path.write_bytes(b"first\n")
    os.truncate(path, 1 << 40)
    reader = Follower(path)
    blocks = list(reader.read_present())
    assert len(blocks) <= 2
    assert b"".join(blocks).replace(b"\0", b"") == b"first\n"
    assert not reader.has_new
    with open(path, "ab") as file:
        file.write(b"last\n")
    assert reader.has_new
    assert b"".join(reader.read_present()).replace(b"\0", b"") == b"last\n"
    assert reader.offset == (1 << 40) + 5


def test_the_last_lines_are_looked_for_in_the_last_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"first\n")
    os.truncate(path, 1 << 40)
    with open(path, "ab") as file:
        file.write(b"\nlast\n")
    assert tail_offset(path, 1) == (1 << 40) + 1
    assert (1 << 40) - follower.BLOCK - follower.MOST_BACK <= tail_offset(path, 2) <= (1 << 40)
