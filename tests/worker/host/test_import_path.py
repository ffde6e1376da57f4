"""Where the agent, which is isolated, looks for the modules of tasks, which are not."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from worker.host.program.import_path import ImportPath, import_path


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own packages; the virtual environment sees them."""
    (tmp_path / "own").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "own"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path / "own"


def added(path: ImportPath) -> list[str]:
    """What a task's interpreter has and ours has not."""
    assert path.entries[-len(sys.path) :] == tuple(sys.path)
    return list(path.entries[: -len(sys.path)])


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ["/host"]),
        ({"PYTHONPATH": "src:/abs"}, ["src", "/abs"]),
        ({"PYTHONPATH": ":src"}, ["", "src"]),
        ({"PYTHONPATH": ""}, []),
    ],
)
def test_pythonpath_is_the_specs_or_else_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], expected: list[str]
) -> None:
    """A task in `tmp_path` under a plain interpreter sees the same."""
    monkeypatch.setenv("PYTHONPATH", "/host")
    found = import_path({**env, "PYTHONNOUSERSITE": "1"}, str(tmp_path))
    assert [os.path.normpath(entry) for entry in added(found)] == [os.path.normpath(tmp_path / entry) for entry in expected]
    assert found.is_all
    text = "import sys; print(*sys.path[1:], sep='\\n')"
    real = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    assert real.stdout.splitlines()[: len(expected)] == [os.path.normpath(tmp_path / entry) for entry in expected]


@pytest.mark.parametrize("seen", [True, False])
def test_the_users_own_packages_count_where_python_looks_at_them(tmp_path: Path, own: Path, seen: bool) -> None:
    if not seen:
        (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    assert added(import_path({}, "/")) == ([str(own)] if seen else [])
    assert added(import_path({"PYTHONNOUSERSITE": "1"}, "/")) == []


def test_pth_files_of_the_user_may_add_anything(own: Path) -> None:
    assert import_path({}, "/").is_all
    (own / "a.pth").write_text("/elsewhere\n")
    path = import_path({}, "/")
    assert added(path) == [str(own)]
    assert not path.is_all


@pytest.mark.parametrize("env", [{"PYTHONHOME": "/opt/python"}, {"PYTHONUSERBASE": "/opt/user"}, {"HOME": "/home/you"}])
def test_where_another_home_leads_to_nobody_knows(env: dict[str, str]) -> None:
    assert not import_path(env, "/").is_all


def test_code_that_runs_at_the_start_may_add_anything(tmp_path: Path) -> None:
    assert import_path({"PYTHONPATH": str(tmp_path)}, "/").is_all
    (tmp_path / "sitecustomize.py").touch()
    assert not import_path({"PYTHONPATH": str(tmp_path)}, "/").is_all
