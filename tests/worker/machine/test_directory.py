"""A directory that somebody moves is found again, and a look at many files in it asks only once where it is."""

from __future__ import annotations

from pathlib import Path

from worker.machine.directory import Directory


def test_a_moved_directory_is_found_at_once_or_after_the_look_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    directory = Directory(str(tmp_path / "a"))
    with directory.settled():
        (tmp_path / "a").rename(tmp_path / "b")
        with directory.settled():
            assert directory.path == str(tmp_path / "a")
        assert directory.path == str(tmp_path / "a")
    assert directory.path == str(tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "c")
    with directory.settled():
        assert directory.path == str(tmp_path / "c")
    assert not directory.is_gone
    (tmp_path / "c").rmdir()
    assert directory.is_gone
