"""Which file system a path is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.machine import file_system
from worker.machine.file_system import is_of_this_machine, kind_of

MOUNTS = r"""
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/scratch xfs rw 0 0
"""


def test_the_mount_that_is_nearest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(MOUNTS.lstrip())
    monkeypatch.setattr(file_system, "_MOUNTS", str(tmp_path / "mounts"))
    assert [kind_of(path) for path in ("/srv/a", "/home/me/runs", "/homes", "/home/scratch/me")] == ["ext4", "nfs4", "ext4", "xfs"]
    assert [is_of_this_machine(path) for path in ("/srv/a", "/home/me/runs", "/proc/1")] == [True, False, False]


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "_MOUNTS", str(tmp_path / "none"))
    assert kind_of("/") == ""
    assert not is_of_this_machine("/")
