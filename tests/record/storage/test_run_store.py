"""Where runs are made, found again, and taken away if nothing was started."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import OrchError, UsageError
from orchestrator.model.state.cluster import Outcome, Verdict
from orchestrator.record.run_directory import RESERVE_BYTES, RunDir
from orchestrator.record.run_store import create_run, discard, find_run, is_made_by_orch, list_runs
from tests.conftest import Orch


def entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# --- made and discarded -------------------------------------------------------------------------


def test_a_new_run_is_hidden_from_git_and_from_other_users(tmp_path: Path) -> None:
    home = tmp_path / "a" / ".orch"
    before = os.umask(0)
    try:
        run = create_run(home, "one")
        run.write("request/agent.txt", "x")
    finally:
        os.umask(before)
    assert (home / ".gitignore").read_text() == "*\n"
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_with_other_things_in_it_is_not_hidden_from_git(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    create_run(tmp_path, "one")
    assert not (tmp_path / ".gitignore").exists()


def test_discarding_takes_away_the_run_and_nothing_else(tmp_path: Path) -> None:
    first, second = create_run(tmp_path / "home", "one"), create_run(tmp_path / "home", "two")
    discard(first)
    assert second.path.is_dir()
    assert not first.path.exists()
    discard(second)
    assert entries(tmp_path / "home") == {".gitignore", "runs"}


def test_runs_made_and_discarded_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    def make(number: int) -> None:
        run = create_run(tmp_path / "home", f"run-{number}")
        run.write("spec.yaml", "x")
        discard(run)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(200)))
    assert {path for path in entries(tmp_path) if "run-" in path} == set()


def test_a_run_of_the_same_id_is_left_alone(tmp_path: Path) -> None:
    first = create_run(tmp_path / "home", "one")
    first.write("spec.yaml", "x")
    before = entries(tmp_path)
    with pytest.raises(OrchError, match=r"cannot keep a run in .*home: File exists"):
        create_run(tmp_path / "home", "one")
    assert entries(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root gives directories away")
def test_a_home_of_another_user_takes_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory for all, such as /tmp, somebody may have made it first: a detached controller reads its settings from there."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, -1)
    discard(create_run(home, "one"))  # root may work in the directory of a user
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OrchError, match="home belongs to another user, who could put another run"):
        create_run(home, "two")
    assert entries(home) == {".gitignore", "runs"}
    os.chown(home, 0, -1)
    discard(create_run(home, "three"))


def test_a_run_without_room_for_its_reserve_is_not_left_behind(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES // 2, before[1]))
    try:
        with pytest.raises(OrchError, match=r"cannot keep a run in .*home"):
            create_run(tmp_path / "home", "one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert entries(tmp_path / "home") == {".gitignore", "runs"}


def test_a_home_without_room_for_its_gitignore_is_hidden_by_the_next_run(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(OrchError, match=r"cannot keep a run in .*home"):
            create_run(tmp_path / "home", "one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    create_run(tmp_path / "home", "two")
    assert (tmp_path / "home" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_hold_a_run_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OrchError, match=r"cannot keep a run in .*file.*\nfix: remove what is there .*--home") as raised:
        create_run(tmp_path / place, "one")
    assert raised.value.exit_code == 125
    assert entries(tmp_path) == {"file"}


# --- found --------------------------------------------------------------------------------------


def test_without_links_the_newest_run_is_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    runs = [create_run(tmp_path / "home", name) for name in ("one", "two")]
    monkeypatch.setattr(Path, "symlink_to", refuse)
    for run in runs:
        run.make_latest()
    assert find_run(tmp_path / "home", None).run_id == max(run.run_id for run in runs)
    assert not (tmp_path / "home/latest").is_symlink()


def test_a_copy_with_a_directory_in_place_of_the_link_takes_runs(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()  # as cp -rL makes it
    (tmp_path / "latest/spec.yaml").touch()
    run = create_run(tmp_path, "two")
    run.make_latest()
    assert find_run(tmp_path, None).run_id == "two"
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "runs"}


def test_a_run_that_has_ended_before_it_had_a_plan_is_the_latest_too(tmp_path: Path) -> None:
    """Such as one whose hosts could not be reached: `orch wait` tells of this run, and not of the one before."""
    runs = [create_run(tmp_path, name) for name in ("one", "two")]
    runs[0].make_latest()
    assert find_run(tmp_path, None).run_id == "one"
    runs[1].write_verdict(Verdict(Outcome.FAILED, 125, 1, 0.0, 1.0), {})
    assert find_run(tmp_path, None).run_id == "two"
    for run in runs:
        run.lock.release()


def test_runs_are_found_by_name_by_beginning_or_as_the_latest(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(UsageError, match="no run in"):
        find_run(home, None)
    assert list_runs(home) == []
    for name in ("abc", "abcd", "xyz"):
        create_run(home, name)
    assert find_run(home, None).run_id == "xyz", "the newest, where the link is not there"
    (home / "runs" / "notes.txt").touch()
    assert [run.run_id for run in list_runs(home)] == ["abc", "abcd", "xyz"], "a file is no run"
    assert find_run(home, "x").run_id == "xyz"
    assert find_run(home, "abc").run_id == "abc", "a whole name is not the beginning of another"
    with pytest.raises(UsageError, match=r"2 runs .*begin with 'ab': .* the newest is abcd; all: abcd, abc$"):
        find_run(home, "ab")
    with pytest.raises(UsageError, match=r"'q' does not exist .*xyz, abcd, abc"):
        find_run(home, "q")
    (home / "latest").symlink_to("runs/gone")
    assert find_run(home, None).run_id == "xyz", "or leads nowhere"
    (home / "latest").unlink()
    (home / "latest").symlink_to("runs/abc")
    assert find_run(home, None).run_id == find_run(home, "latest").run_id == "abc"
    for name in ("lr-1-20261127-200000-0123abcd", "lr-10-20261127-200001-0123abcd", "lr-10-20261127-200002-0123abcd"):
        create_run(home, name)
    assert find_run(home, "lr-1").run_id == "lr-1-20261127-200000-0123abcd", "the whole name of a run is not the beginning of another"
    with pytest.raises(UsageError, match=r"2 runs .*begin with 'lr-10': .* the newest is lr-10-20261127-200002"):
        find_run(home, "lr-10")
    create_run(home, "latest-model")
    assert find_run(home, "latest").run_id == "latest-model"


@pytest.mark.parametrize("words", [("ps",), ("ps", "--all"), ("logs",), ("down",), ("wait", "one")])
def test_a_directory_of_runs_that_cannot_be_read_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], orch: Orch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    create_run(tmp_path / "home", "one")
    monkeypatch.setattr(Path, "iterdir", refuse)
    said = orch.in_process(*words, "--home", str(tmp_path / "home"), check=125).err
    assert said == f"error: the runs in {tmp_path}/home cannot be read: Permission denied\n"


def test_runs_are_listed_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number, name in enumerate(("c", "b", "a")):
        run = create_run(home, name)
        run.write("spec.yaml", "{}\n")
        os.utime(run.path / "spec.yaml", (100 + number, 100 + number))
    RunDir(home / "runs" / "c").write_verdict(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0), {})
    assert [run.run_id for run in list_runs(home)] == ["c", "b", "a"]


def test_a_run_that_is_discarded_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    first, second = create_run(home, "first"), create_run(home, "second")
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        found = list(listed(path))
        if path.name == "runs":
            monkeypatch.undo()
            discard(second)
        return iter(found)

    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [run.run_id for run in list_runs(home)] == [first.run_id]


def test_a_run_that_another_user_has_made_is_none_of_this_users(tmp_path: Path) -> None:
    """Such as one of root: it must not keep `orch prune` from the others."""
    run = tmp_path / "train-20261122-070605-89abcdef"
    run.mkdir()
    for name in ("lock", "spec.yaml"):
        (run / name).touch()
    assert is_made_by_orch(RunDir(run))
    run.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may look anywhere
    try:
        assert not is_made_by_orch(RunDir(run))
    finally:
        os.seteuid(user)
