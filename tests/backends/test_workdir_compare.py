"""A shared working directory: what of it is compared, and what becomes of each difference."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.backends.code_sync import describe_workdir
from tests.conftest import needs_git
from worker.machine import workdir
from worker.protocol.messages import Program

pytestmark = needs_git

SCRIPT = Program("script", "script.py")
ONE_SIDE = "only one of the two has changes that are not committed"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory in git, with a script that imports a module."""
    root = tmp_path / "here"
    (root / "part").mkdir(parents=True)
    (root / "script.py").write_text("import part.inner\n")
    (root / "part/inner.py").touch()
    git(root, "init", "-q")
    commit(root)
    return root


def git(root: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a", *words]
    return subprocess.run(argv, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "work")
    return git(root, "rev-parse", "HEAD")


def copy(here: Path) -> Path:
    return Path(shutil.copytree(here, here.with_name("there"), symlinks=True))


def compare(here: Path, other: Path, program: Program = SCRIPT) -> tuple[str, str]:
    """What is wrong with the directory `other`, and what is only noted."""
    problems, notes = workdir.compare(describe_workdir(str(here), program), str(other))
    return "; ".join(problems), "; ".join(notes)


def refused(other: Path, what: str) -> tuple[str, str]:
    return f"{str(other)!r} is not what it is where orch runs: {what}; make it the same, or write backend: {{code: ship}}", ""


def test_a_copy_of_the_same_commit_is_the_same_whatever_programs_have_written_there(here: Path) -> None:
    other = copy(here)
    (other / "checkpoint").write_text("of an earlier run")
    assert compare(here, other) == ("", "")


def test_an_old_commit_is_refused(here: Path) -> None:
    old = git(here, "rev-parse", "HEAD")
    other = copy(here)
    (here / "part/inner.py").write_text("x = 1\n")
    new = commit(here)
    assert compare(here, other) == refused(other, f"its commit is {old[:10]} and not {new[:10]}")


def test_changes_that_only_one_side_has_are_refused_and_on_both_sides_noted(here: Path) -> None:
    other = copy(here)
    (here / "part/inner.py").write_text("x = 1\n")
    assert compare(here, other) == refused(other, ONE_SIDE)
    assert compare(other, here) == refused(here, ONE_SIDE)
    (other / "part/inner.py").write_text("x = 2\n")
    why = "it has changes that are not committed"
    note = f"{str(other)!r} could not be compared as a whole with the directory where orch runs: {why}"
    assert compare(here, other) == ("", note)
    note = f"{str(other)!r} could not be compared as a whole with the directory where orch runs: {why}"
    assert compare(here, other, Program("command", "true")) == ("", note)


def test_another_program_is_refused_whether_git_knows_it_or_not(here: Path) -> None:
    (here / "new.py").write_text("")
    other = copy(here)
    program = Program("script", "new.py")
    assert compare(here, other, program) == ("", "")
    (other / "new.py").write_text("x = 1\n")
    assert compare(here, other, program) == refused(other, "new.py is different")
    (other / "new.py").unlink()
    assert compare(here, other, program) == refused(other, "new.py is missing")


def test_without_git_the_program_alone_is_compared_and_that_is_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(here / ".git")
    other = copy(here)
    note = f"{str(other)!r} could not be compared as a whole with the directory where orch runs: git does not know it"
    assert compare(here, other) == ("", note)
    note = f"{str(other)!r} could not be compared as a whole with the directory where orch runs: git does not know it"
    assert compare(here, other, Program("command", "true")) == ("", note)
    (other / "script.py").write_text("")
    assert compare(here, other) == refused(other, "script.py is different")
    monkeypatch.setenv("PATH", "/nowhere")
    assert workdir.read_state(str(here), "script.py").commit == "", "nor is git installed"


def test_the_directory_on_a_disk_that_both_sides_share_is_the_same_whatever_has_changed(here: Path) -> None:
    (here / "part/inner.py").write_text("x = 1\n")
    link = here.with_name("link")
    link.symlink_to(here)
    assert compare(here, link) == compare(here, link, Program("command", "true")) == ("", "")
    shutil.rmtree(here / ".git")
    assert compare(here, link) == ("", "")


def test_the_file_of_a_program(here: Path, tmp_path: Path) -> None:
    def file_of(program: Program) -> str:
        return describe_workdir(str(here), program).program

    (here / "train").write_text("#!/bin/sh\n")
    assert file_of(Program("command", "./train")) == "train"
    assert file_of(Program("command", "train")) == "", "one of PATH"
    assert file_of(Program("command", "/bin/sh")) == "", "each host has its own"
    assert file_of(Program("module", "part.inner")) == "part/inner.py"
    assert file_of(Program("script", str(here / "script.py"))) == "script.py"
    (tmp_path / "run.py").touch()
    assert file_of(Program("script", "../run.py")) == str(tmp_path / "run.py")
    assert describe_workdir(str(here), Program("script", "../run.py")).digest
    odd = os.fsdecode(b"not utf-8 \xff.py")
    assert describe_workdir(str(here), Program("script", odd)).digest == ""
