"""`orch prune`: old runs go, and nothing that somebody may still need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.record.run_store import create_run, list_runs
from tests.conftest import Orch
from tests.live import held_run

DAY_S = 86400.0
ID = "run{}-20261120-000000-0123abcd"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Five runs that began one to five days ago."""
    home = tmp_path / ".orch"
    for age in range(5, 0, -1):
        run = create_run(home, ID.format(age))
        run.lock.acquire()
        run.write("spec.yaml", "{}")
        run.lock.release()
        began = time.time() - age * DAY_S
        os.utime(run.path / "spec.yaml", (began, began))
    (home / "latest").symlink_to(Path("runs", ID.format(1)))
    return home


def names(home: Path) -> list[str]:
    return [run.run_id.removesuffix(ID[5:]) for run in list_runs(home)]


def test_the_newest_runs_are_kept(orch: Orch, home: Path) -> None:
    assert "0 of 5 runs" in orch.in_process("prune", check=0).out  # 20 are kept
    for keep in ("5", "6", "8", "100"):
        assert "0 of 5 runs" in orch.in_process("prune", "--keep", keep, "--dry-run", check=0).out
    assert "3 of 5 runs" in orch.in_process("prune", "--keep", "2", "--dry-run", check=0).out
    assert len(names(home)) == 5
    done = orch.in_process("prune", "--keep", "2", check=0).out
    assert [line.split()[1].partition("-")[0] for line in done.splitlines()[:-1]] == ["run5", "run4", "run3"]
    assert names(home) == ["run2", "run1"]


def test_a_run_that_is_older_goes_and_the_latest_one_stays(orch: Orch, home: Path) -> None:
    removed = json.loads(orch.in_process("prune", "--older", "60h", "--json", check=0).out)
    assert removed["removed"] == [ID.format(age) for age in (5, 4, 3)]
    assert removed["bytes"] > 3 * 32 * 1024  # the reserve of each
    orch.in_process("prune", "--keep", "0", check=0)
    assert names(home) == ["run1"]
    assert "run1" in orch.in_process("ps", "--all", check=0).out


def test_without_any_word_nothing_is_removed(orch: Orch, home: Path) -> None:
    """The oldest runs may be the trainings, and the newest twenty some trials."""
    for number in range(20):
        shutil.copytree(home / "runs" / ID.format(5), home / "runs" / f"trial{number}-20261127-000000-0123abcd")
    before = names(home)
    shown = orch.in_process("prune", check=0).out
    assert shown.count("would remove ") == 5
    assert "nothing was removed: orch prune --keep 20 removes them, and orch prune RUN removes a run" in shown
    assert names(home) == before
    orch.in_process("prune", "--keep", "20", check=0)
    assert len(names(home)) == 20


@pytest.mark.parametrize("word", ["rm", "clean", "cleanup"])
def test_a_word_of_habit_removes_the_runs_that_it_names_and_no_others(orch: Orch, home: Path, word: str) -> None:
    shown = orch.in_process(word, "--keep", "0", check=0).out
    assert "would remove run5-" in shown
    assert f"nothing was removed: orch prune removes them with the same options, and orch {word} RUN removes a run" in shown
    assert len(names(home)) == 5
    assert "removed run4-" in orch.in_process(word, "run4", "run2", "run4", check=0).out
    assert names(home) == ["run5", "run3", "run1"]
    assert "to remove all of them: orch prune 'run*'" in orch.in_process(word, "run", check=2).err
    for number in (1, 2):
        shutil.copytree(home / "runs" / ID.format(3), home / "runs" / f"lr-1-20261127-00000{number}-aaaaaaa{number}")
    shutil.copytree(home / "runs" / ID.format(3), home / "runs" / "lr-10-20261127-000000-aaaaaaaa")
    of_one_name = "to remove all of them: orch prune lr-1-20261127-000001-aaaaaaa1 lr-1-20261127-000002-aaaaaaa2\n"
    assert orch.in_process(word, "lr-1", check=2).err.endswith(of_one_name)
    orch.in_process(word, "lr-*", check=0)
    orch.in_process(word, "run5", "--keep", "1", check=2)
    assert names(home) == ["run5", "run3", "run1"]


def test_a_pattern_names_the_runs_of_a_sweep(orch: Orch, home: Path) -> None:
    (home / "runs" / "run-of-another-program").mkdir()
    shown = orch.in_process("prune", "run[345]*", "--dry-run", check=0).out
    assert [line.split()[2].partition("-")[0] for line in shown.splitlines()[:-1]] == ["run5", "run4", "run3"]
    assert "no run in " in orch.in_process("prune", "lr-*", check=2).err
    orch.in_process("prune", "run*", check=0)
    assert names(home) == ["run-of-another-program"]
    assert "leave it out, since no question is asked" in orch.in_process("rm", "-f", "run1", check=2).err


def test_both_limits_must_be_passed(orch: Orch, home: Path) -> None:
    assert "'14' has no unit: 14d are days" in orch.in_process("prune", "--older", "14", check=2).err
    orch.in_process("prune", "--keep", "1", "--older", "4.5d", check=0)
    assert names(home) == ["run4", "run3", "run2", "run1"]


def test_a_run_that_goes_on_stays(orch: Orch, home: Path) -> None:
    with held_run(home, run_id="one-20261127-000000-0123abcd") as (running, _):
        (home / "latest").unlink()
        (home / "latest").symlink_to(Path("runs", ID.format(1)))
        orch.in_process("prune", "--keep", "0", check=0)
        assert f"orch down {running.run_id}" in orch.in_process("rm", "run1", running.run_id, check=2).err
        assert set(names(home)) == {"one-20261127-000000-0123abcd", "run1"}


def test_a_link_in_a_run_is_removed_and_not_followed(orch: Orch, home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (home / "runs" / ID.format(5) / "link").symlink_to(kept)
    orch.in_process("prune", "--keep", "4", check=0)
    assert names(home) == ["run4", "run3", "run2", "run1"]
    assert (kept / "file").exists()


def test_a_link_in_the_place_of_a_run_is_removed_and_not_followed(orch: Orch, home: Path, tmp_path: Path) -> None:
    (home / "runs" / ID.format(5)).rename(tmp_path / "elsewhere")
    (home / "runs" / ID.format(5)).symlink_to(tmp_path / "elsewhere")
    removed = json.loads(orch.in_process("prune", "--json", "run5", check=0).out)
    assert (removed["removed"], removed["bytes"]) == ([ID.format(5)], 0)
    assert names(home) == ["run4", "run3", "run2", "run1"]
    assert (tmp_path / "elsewhere" / "spec.yaml").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_what_orch_has_not_made_is_not_removed(orch: Orch, home: Path, tmp_path: Path, is_link: bool) -> None:
    """A program may have logs of its own in a directory `runs`, and `runs` may be a link to anywhere."""
    if is_link:
        (home / "runs").rename(tmp_path / "everything")
        (home / "runs").symlink_to(tmp_path / "everything")
    for name in ("Nov27_12-00-00_host", "thesis"):
        (home / "runs" / name).mkdir()
        (home / "runs" / name / "events.out.tfevents").touch()
    (home / "runs" / "root").symlink_to("/")
    orch.in_process("prune", "--keep", "0", check=0)
    assert sorted(os.listdir(home / "runs")) == ["Nov27_12-00-00_host", "root", ID.format(1), "thesis"]
    assert "thesis: no directory that orch has made, so nothing is removed" in orch.in_process("prune", "thesis", check=2).err
    assert (home / "runs" / "thesis").exists()


@pytest.mark.parametrize("other", ["spec.yaml", "events.jsonl", "reserve", "lock"])
def test_another_tool_may_have_files_of_the_same_names(orch: Orch, home: Path, other: str) -> None:
    for name in ("train", "exp-20261120-000000", "exp-20261120-000000-0123abcd"):
        (home / "runs" / name).mkdir()
        (home / "runs" / name / "weights.h5").touch()
        (home / "runs" / name / other).write_text("openapi: 3.0.0\n")
    orch.in_process("prune", "--keep", "0", check=0)
    orch.in_process("prune", "train", check=2)
    assert len(list((home / "runs").glob("*/weights.h5"))) == 3


def test_a_run_that_is_being_made_stays(orch: Orch, home: Path) -> None:
    """Its directory is there before the lock, and the lock before the spec."""
    run = create_run(home, "new-20261127-000000-0123abcd")
    orch.in_process("prune", "--keep", "0", check=0)
    (run.path / "lock").touch()
    orch.in_process("prune", "--keep", "0", check=0)
    assert "new-20261127-000000-0123abcd" in names(home)
    os.utime(run.path, (1e9, 1e9))  # its maker was killed
    orch.in_process("prune", "--keep", "0", check=0)
    assert names(home) == ["run1"]


@pytest.mark.parametrize("name", ["latest", ID.format(1)])
def test_a_run_that_was_moved_and_left_a_link_loses_the_link_alone(orch: Orch, home: Path, tmp_path: Path, name: str) -> None:
    (home / "runs" / ID.format(1)).rename(tmp_path / "elsewhere")
    (home / "runs" / ID.format(1)).symlink_to(tmp_path / "elsewhere")
    orch.in_process("prune", name, check=0)
    assert (tmp_path / "elsewhere" / "spec.yaml").exists()
    assert not (home / "runs" / ID.format(1)).is_symlink()


def test_a_link_to_another_directory_is_no_latest_run(orch: Orch, home: Path, tmp_path: Path) -> None:
    (tmp_path / ID.format(9)).mkdir()
    for name in ("lock", "spec.yaml"):
        (tmp_path / ID.format(9) / name).touch()
    (home / "latest").unlink()
    (home / "latest").symlink_to(tmp_path / ID.format(9))
    orch.in_process("prune", "latest", check=0)
    assert (tmp_path / ID.format(9) / "spec.yaml").exists()
    assert names(home) == ["run5", "run4", "run3", "run2"]


def test_what_is_mounted_in_a_run_is_not_emptied(orch: Orch, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = home / "runs" / ID.format(4) / "my data"
    data.mkdir()
    (data / "weights.h5").touch()
    monkeypatch.setattr("worker.machine.file_system._MOUNTS", str(tmp_path / "mounts"))
    (tmp_path / "mounts").write_text(f"/dev/sda1 {str(data).replace(' ', chr(92) + '040')} ext4 rw 0 0\n")
    assert "is another directory, which is mounted there" in orch.in_process("prune", "--keep", "0", check=125).err
    assert names(home) == ["run4", "run1"]
    assert (data / "weights.h5").exists()


def test_directories_that_lie_too_deep_keep_no_other_run_from_going(orch: Orch, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 in each other, or of a path that is longer than the kernel's 4,096 bytes."""
    for age, name, depth in ((5, "d", 1100), (4, "e" * 200, 30)):
        monkeypatch.chdir(home / "runs" / ID.format(age))
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
    monkeypatch.chdir(home.parent)
    done = orch.in_process("prune", "--keep", "2")
    assert (done.code, {*names(home)}) in ((125, {"run5", "run2", "run1"}), (0, {"run2", "run1"})), done  # the second from Python 3.13 on
    if done.code:
        assert (
            done.err
            == f"error: cannot remove {ID.format(5)}: its directories lie too deep for Python: rm -rf {home / 'runs' / ID.format(5)}\n"
        )
        subprocess.run(["rm", "-rf", home / "runs" / ID.format(5)], check=True)


@pytest.mark.parametrize("command", ["prune", "down", "ps", "logs", "report", "wait", "restart", "stacks"])
def test_an_empty_name_is_a_mistake(orch: Orch, home: Path, command: str) -> None:
    assert "must not be empty" in orch.in_process(command, "", check=2).err
    assert len(names(home)) == 5


def test_names_that_a_shell_or_a_terminal_would_act_on_are_no_runs(orch: Orch, home: Path) -> None:
    for name in ("a$(touch HIT)", "b\x1b]0;title\x07", "c\udcff", "d e"):
        shutil.copytree(home / "runs" / ID.format(5), home / "runs" / f"{name}-20261127-000000-0123abcd")
    assert len(names(home)) == 5
    done = orch.in_process("ps", "--all", check=0).out + orch.in_process("prune", "--keep", "0", check=0).out
    assert "title" not in done
    assert len(os.listdir(home / "runs")) == 5
