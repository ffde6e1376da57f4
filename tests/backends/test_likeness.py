"""A shared working directory: what of it is compared, and what becomes of each difference. Directories that are copies, and links."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.backends import likeness
from worker.contract import LikeHere, Likeness, Program
from worker.host import likeness as there

SCRIPT = Program("script", "script.py")


def put(root: Path, **files: str) -> Path:
    """Files with these contents; ``__`` in a name stands for a slash, the last ``_`` for a dot."""
    for name, text in files.items():
        path = root / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return put(tmp_path / "here", script_py="import part.inner\n", part__inner_py="", conf__a_yaml="x", data_csv="1", out_json="{}")


def copy(here: Path) -> Path:
    return Path(shutil.copytree(here, here.with_name("there"), symlinks=True))


def paths(root: Path, program: Program = SCRIPT) -> list[str]:
    return [file.path for file in likeness.describe(str(root), program).files]


def compare(here: Path, other: Path, program: Program = SCRIPT) -> tuple[str, str]:
    """What is wrong with the directory `other`, and what is only noted."""
    problems, notes = there.compare(likeness.describe(str(here), program).pack(), str(other))
    return "; ".join(problems), "; ".join(notes)


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=root, check=True)


def test_without_git_it_is_code_and_settings_and_nothing_that_a_program_writes(here: Path) -> None:
    put(here, outputs__day__c_yaml="", outputs__b_py="", train_log="", checkpoint_index="")
    put(here, env__lib__x_py="", __pycache____y_py="", deep__er__z_toml="", runs__m_json="")
    (here / "env/pyvenv.cfg").touch()
    (here / ".hidden").mkdir()
    (here / ".hidden/x.py").touch()
    os.mkfifo(here / "pipe.py")
    os.symlink("/etc", here / "etc.py")
    assert sorted(paths(here)) == ["conf/a.yaml", "deep/er/z.toml", "out.json", "outputs/b.py", "part/inner.py", "script.py"]


def test_what_git_tracks_is_compared_whatever_it_is_and_what_it_ignores_is_not(here: Path) -> None:
    git(here, "init", "-q")
    put(here, new_py="", new_csv="", ignored_py="", gone_py="")
    (here / ".gitignore").write_text("ignored.py\nscript.py\n")
    git(here, "add", "data.csv", "out.json", "gone.py")
    (here / "gone.py").unlink()
    assert sorted(paths(here)) == ["conf/a.yaml", "data.csv", "new.py", "out.json", "part/inner.py", "script.py"]
    other = copy(here)
    put(other, data_csv="2", out_json="[]", new_csv="other", ignored_py="other")
    problem, note = compare(here, other)
    assert "data.csv, out.json are different; make it the same, or write backend: {code: ship}" in problem
    assert note == ""


@pytest.mark.parametrize(
    ("changed", "problem", "note"),
    [
        ({}, "", ""),
        ({"part__inner_py": "x = 1"}, "part/inner.py is different", ""),
        ({"conf__a_yaml": "y"}, "conf/a.yaml is different", ""),
        ({"data_csv": "2", "train_log": "x"}, "", ""),
        ({"out_json": "[]"}, "", "out.json is different"),
    ],
)
def test_a_copy_is_refused_for_what_is_code_or_settings(here: Path, changed: dict[str, str], problem: str, note: str) -> None:
    found = compare(here, put(copy(here), **changed))
    assert [bool(text) for text in found] == [bool(problem), bool(note)]
    assert problem in found[0]
    assert note in found[1]


def test_what_is_missing_is_named(here: Path) -> None:
    other = copy(here)
    (other / "conf/a.yaml").unlink()
    (other / "out.json").unlink()
    problem, note = compare(here, other)
    assert "conf/a.yaml is missing; make" in problem
    assert "out.json is missing in" in note


def test_a_file_that_is_the_same_one_is_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared disk a hundred hosts look, and none of them reads; nor is anything said of what was left out."""
    monkeypatch.setattr(likeness, "MOST_FILES", 2)
    packed = likeness.describe(str(here), SCRIPT).pack()
    assert "only 2 of 4 files" in Likeness.unpack(packed).rest
    for path in here.rglob("*.py"):
        was = path.stat()
        path.write_text(path.read_text()[::-1])  # as nobody does: only so can it be seen that nobody reads
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert there.compare(packed, str(here)) == ([], [])


def test_what_was_left_out_is_said_and_what_the_script_imports_never_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "MOST_FILES", 4)
    put(here, part__near_py="", **{f"a{number}_py": "" for number in range(9)})
    (here / "part/__init__.py").write_text("from . import near\n")
    assert paths(here) == ["script.py", "part/__init__.py", "part/inner.py", "part/near.py"]
    problem, note = compare(here, copy(here))
    assert (problem, note) == ("", f"only 4 of 15 files of {str(here)!r} were compared; not: a0.py, a1.py, a2.py, 8 more")
    monkeypatch.setattr(likeness, "MOST_WALKED", 3)
    assert "not what lies beyond the first 3 files" in likeness.describe(str(here), SCRIPT).rest


def test_what_is_too_large_to_be_read_is_compared_by_its_size(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "LARGE", 10)
    put(here, large_py="# 34567890123")
    other = put(copy(here), large_py="# 3456789012x", part__inner_py="x")
    put(here, part__inner_py="y")
    problem, note = compare(here, other)
    assert "part/inner.py is different" in problem
    assert note == f"compared by size alone in {str(other)!r}: script.py, large.py"
    put(other, large_py="other")
    assert "large.py" in compare(here, other)[0]
    monkeypatch.setattr(there, "READING_S", -1.0)
    assert "compared by size alone" in compare(here, other)[1]


def test_the_program_itself_is_compared_whatever_its_name(here: Path, tmp_path: Path) -> None:
    (here / "train").write_text("#!/bin/sh\n")
    assert "train" in paths(here, Program("command", "./train"))
    assert "train" not in paths(here, Program("command", "train"))  # one of PATH
    assert not [path for path in paths(here, Program("command", "/bin/sh")) if "sh" in path]  # each host has its own
    assert paths(here, Program("module", "part.inner"))[0] == "part/inner.py"
    assert paths(here, Program("script", str(here / "script.py")))[0] == "script.py"
    elsewhere = put(tmp_path / "elsewhere", run_py="import near\n", near_py="", far_py="")
    found = paths(here, Program("script", "../elsewhere/run.py"))
    assert found[:2] == [str(elsewhere / "run.py"), str(elsewhere / "near.py")]
    assert str(elsewhere / "far.py") not in found


def test_a_likeness_arrives_as_it_was_packed() -> None:
    name = os.fsdecode(b"not utf-8 \xff \n")
    wanted = Likeness((LikeHere(name, 1, "a" * 64, 2**63, 1_700_000_000_000_000_001, must=False),), "the rest")
    assert Likeness.unpack(wanted.pack()) == wanted
    for broken in ("", "%", "AAAA", Likeness((), "").pack()[:-4]):
        with pytest.raises(ValueError, match=r"."):
            Likeness.unpack(broken)
