"""What an agent finds out about its host: the TensorFlow that is installed there."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from worker.host.facts import host_facts


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
    assert host_facts.find_tensorflow([{"PYTHONPATH": f"/no/such/directory:{tmp_path}"}], "/") == expected
    assert host_facts.find_tensorflow([{"PYTHONPATH": tmp_path.name}], str(tmp_path.parent)) == expected


def test_there_is_no_tensorflow_only_if_no_interpreter_finds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "path", [])
    assert host_facts.find_tensorflow([{}], "/") == ""
    (tmp_path / "tensorflow").mkdir()  # what is left of one that was removed
    assert host_facts.find_tensorflow([{"PYTHONPATH": str(tmp_path)}], "/") == ""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("tensorflow/__init__.py", "")
    assert host_facts.find_tensorflow([{}, {"PYTHONPATH": str(tmp_path / "all.zip")}], "/") == host_facts.UNKNOWN_VERSION
    python.write_text("#!/bin/sh\nexit 1\n")
    assert host_facts.find_tensorflow([{}], "/") is None
