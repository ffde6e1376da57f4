"""`orch prune`: old runs go, and nothing that somebody may still need."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from orchestrator.record.storage.run_store import create_run, list_runs
from tests.conftest import Orch
from tests.live import held_run

DAY_S = 86400.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Five runs that began one to five days ago."""
    home = tmp_path / ".orch"
    for age in range(5, 0, -1):
        run = create_run(home, f"run{age}")
        run.write("spec.yaml", "{}")
        began = time.time() - age * DAY_S
        os.utime(run.path / "spec.yaml", (began, began))
    (home / "latest").symlink_to("runs/run1")
    return home


def names(home: Path) -> list[str]:
    return [run.run_id for run in list_runs(home)]


def test_the_newest_runs_are_kept(orch: Orch, home: Path) -> None:
    assert "0 of 5 runs" in orch.in_process("prune", check=0).out  # 20 are kept
    for keep in ("5", "6", "8", "100"):
        assert "0 of 5 runs" in orch.in_process("prune", "--keep", keep, "--dry-run", check=0).out
    assert "3 of 5 runs" in orch.in_process("prune", "--keep", "2", "--dry-run", check=0).out
    assert len(names(home)) == 5
    done = orch.in_process("prune", "--keep", "2", check=0).out
    assert [line.split()[1] for line in done.splitlines()[:-1]] == ["run5", "run4", "run3"]
    assert names(home) == ["run2", "run1"]


def test_a_run_that_is_older_goes_and_the_latest_one_stays(orch: Orch, home: Path) -> None:
    removed = json.loads(orch.in_process("prune", "--older", "60h", "--json", check=0).out)
    assert removed["removed"] == ["run5", "run4", "run3"]
    assert removed["bytes"] > 3 * 32 * 1024  # the reserve of each
    orch.in_process("prune", "--keep", "0", check=0)
    assert names(home) == ["run1"]
    assert "run1" in orch.in_process("ps", "--all", check=0).out


def test_without_any_word_nothing_is_removed(orch: Orch, home: Path) -> None:
    """The oldest runs may be the trainings, and the newest twenty some trials."""
    for number in range(20):
        shutil.copytree(home / "runs" / "run5", home / "runs" / f"trial{number}")
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
    assert "would remove run5" in shown
    assert f"nothing was removed: orch prune removes them with the same options, and orch {word} RUN removes a run" in shown
    assert len(names(home)) == 5
    assert "removed run4 (" in orch.in_process(word, "run4", "run2", "run4", check=0).out
    assert names(home) == ["run5", "run3", "run1"]
    assert "to remove all of them: orch prune 'run*'" in orch.in_process(word, "run", check=2).err
    for number in (1, 2):
        shutil.copytree(home / "runs" / "run3", home / "runs" / f"lr-1-20261127-00000{number}-aaaaaaa{number}")
    shutil.copytree(home / "runs" / "run3", home / "runs" / "lr-10-20261127-000000-aaaaaaaa")
    of_one_name = "to remove all of them: orch prune lr-1-20261127-000001-aaaaaaa1 lr-1-20261127-000002-aaaaaaa2\n"
    assert orch.in_process(word, "lr-1", check=2).err.endswith(of_one_name)
    orch.in_process(word, "lr-*", check=0)
    orch.in_process(word, "run5", "--keep", "1", check=2)
    assert names(home) == ["run5", "run3", "run1"]


def test_a_pattern_names_the_runs_of_a_sweep(orch: Orch, home: Path) -> None:
    (home / "runs" / "run-of-another-program").mkdir()
    shown = orch.in_process("prune", "run[345]*", "--dry-run", check=0).out
    assert [line.split()[2] for line in shown.splitlines()[:-1]] == ["run5", "run4", "run3"]
    assert "no run in " in orch.in_process("prune", "lr-*", check=2).err
    orch.in_process("prune", "run*", check=0)
    assert names(home) == ["run-of-another-program"]
    assert "leave it out, since no question is asked" in orch.in_process("rm", "-f", "run1", check=2).err


def test_both_limits_must_be_passed(orch: Orch, home: Path) -> None:
    assert "'14' has no unit: 14d are days" in orch.in_process("prune", "--older", "14", check=2).err
    orch.in_process("prune", "--keep", "1", "--older", "4.5d", check=0)
    assert names(home) == ["run4", "run3", "run2", "run1"]


def test_a_run_that_goes_on_stays(orch: Orch, home: Path) -> None:
    with held_run(home) as (running, _):
        (home / "latest").unlink()
        (home / "latest").symlink_to("runs/run1")
        orch.in_process("prune", "--keep", "0", check=0)
        assert f"orch down {running.run_id}" in orch.in_process("rm", "run1", running.run_id, check=2).err
        assert set(names(home)) == {running.run_id, "run1"}


def test_a_link_in_a_run_is_removed_and_not_followed(orch: Orch, home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (home / "runs" / "run5" / "link").symlink_to(kept)
    orch.in_process("prune", "--keep", "4", check=0)
    assert names(home) == ["run4", "run3", "run2", "run1"]
    assert (kept / "file").exists()


def test_a_link_in_the_place_of_a_run_is_removed_and_not_followed(orch: Orch, home: Path, tmp_path: Path) -> None:
    (home / "runs" / "run5").rename(tmp_path / "elsewhere")
    (home / "runs" / "run5").symlink_to(tmp_path / "elsewhere")
    removed = json.loads(orch.in_process("prune", "--json", "run5", check=0).out)
    assert (removed["removed"], removed["bytes"]) == (["run5"], 0)
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
    assert sorted(os.listdir(home / "runs")) == ["Nov27_12-00-00_host", "root", "run1", "thesis"]
    assert "thesis: no directory that orch has made, so nothing is removed" in orch.in_process("prune", "thesis", check=2).err
    assert (home / "runs" / "thesis").exists()


def test_there_may_be_no_run_at_all(orch: Orch) -> None:
    assert "0 of 0 runs" in orch.in_process("prune", check=0).out
