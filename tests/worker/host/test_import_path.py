"""Where the agent, which is isolated, looks for the modules of tasks, which are not."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from worker.host.facts.import_path import find_module


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A working directory, and beside it `src` and `host`, of which each has a module of its name and one that all have."""
    for name in ("cwd", "src", "host"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_{name}.py").touch()
        (tmp_path / name / "of_all.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "env", "expected"),
    [
        ("of_cwd", {}, "cwd"),
        ("of_host", {}, "host"),
        ("of_host", {"PYTHONPATH": "../src"}, ""),
        ("of_host", {"PYTHONPATH": ""}, ""),
        ("of_src", {"PYTHONPATH": "/nowhere:../src"}, "src"),
        ("of_src", {}, ""),
        ("of_all", {"PYTHONPATH": "../src"}, "cwd"),
    ],
)
def test_pythonpath_is_the_specs_or_else_the_hosts(
    places: Path, monkeypatch: pytest.MonkeyPatch, name: str, env: Mapping[str, str], expected: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(places / "host"))
    found = find_module(name, env, str(places / "cwd"))
    assert found is not None
    assert os.path.realpath(found) == str(places / expected / f"{name}.py") if expected else found == ""


def test_an_interpreter_of_the_task_knows_of_the_other_places(tmp_path: Path) -> None:
    """Zip files, the user's own packages, what code at the start of the interpreter adds, directories without code."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("zipped/__init__.py", "")
    added = tmp_path / "added"
    added.mkdir()
    (added / "late.py").touch()
    (tmp_path / "sitecustomize.py").write_text(f"print('a word')\nimport sys\nsys.path.append({str(added)!r})\n")
    (tmp_path / "bare").mkdir()
    env = {"PYTHONPATH": os.pathsep.join(("all.zip", str(tmp_path)))}
    assert find_module("zipped", env, str(tmp_path)) == str(tmp_path / "all.zip/zipped/__init__.py")
    assert find_module("late", env, str(tmp_path)) == str(added / "late.py")
    assert find_module("bare", env, str(tmp_path)) == str(tmp_path / "bare")
    assert find_module("there_is_none", env, str(tmp_path)) == ""


@pytest.mark.parametrize("text", ["import os\nos._exit(1)", "import os\nos.kill(os.getpid(), 9)"])
def test_where_no_interpreter_starts_nothing_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    assert find_module("tool", {"PYTHONPATH": str(tmp_path)}, str(tmp_path)) is None
    assert find_module("sitecustomize", {"PYTHONPATH": str(tmp_path)}, str(tmp_path)) == str(tmp_path / "sitecustomize.py")


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_module("there_is_none", {}, str(tmp_path)) is None
