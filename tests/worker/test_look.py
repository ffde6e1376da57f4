"""What an agent finds out about its host: TensorFlow, and the parts of its cores."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import pytest

from worker.host import look


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["tensorflow/__init__.py", "tensorflow-2.19.0.dist-info/METADATA"], "2.19.0"),
        (["tensorflow/__init__.py", "tensorflow_cpu-2.21.0rc1.dist-info/METADATA", "tf_keras-2.18.0.dist-info/METADATA"], "2.21.0rc1"),
        (["tensorflow/__init__.py", "tf_nightly-2.22.0.dev20261101.dist-info/METADATA"], "2.22.0.dev20261101"),
        (["tensorflow/__init__.py", "tensorflow_datasets-4.9.dist-info/METADATA"], "of unknown version"),
    ],
)
def test_the_version_of_tensorflow_that_a_task_would_import(tmp_path: Path, names: list[str], expected: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert look.find_tensorflow({"PYTHONPATH": f"/no/such/directory:{tmp_path}"}) == expected


@pytest.mark.parametrize(("line", "seen"), [("include-system-site-packages = false", False), ("include-system-site-packages = true", True)])
def test_the_users_own_packages_count_where_python_looks_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, seen: bool
) -> None:
    (tmp_path / "own/tensorflow").mkdir(parents=True)
    (tmp_path / "own/tensorflow/__init__.py").touch()
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\n{line}\n")
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "own"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert bool(look.find_tensorflow({})) is seen


@pytest.mark.parametrize(
    ("part", "parts", "expected"),
    [(0, 1, [0, 4, 1, 5, 2, 6, 3, 7]), (0, 2, [0, 4, 1, 5]), (1, 2, [2, 6, 3, 7]), (2, 3, [2, 6, 3, 7]), (5, 6, [3, 7]), (9, 12, [4])],
)
def test_parts_of_the_cores_do_not_share_a_core_s_hardware_threads(
    monkeypatch: pytest.MonkeyPatch, part: int, parts: int, expected: list[int]
) -> None:
    """Four cores with two threads each, numbered as Linux does: first one thread of each, then the other."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(look, "_core_of", lambda number: (0, number % 4))
    assert look.cores_of(part, parts) == expected
