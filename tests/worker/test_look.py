"""What an agent sees in a program before it runs it."""

from __future__ import annotations

import os
import site
import sys
import threading
from pathlib import Path

import pytest

from worker.contract import Program, TemplateOrder
from worker.host import look

TENSORFLOW = TemplateOrder(("tensorflow",), 2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"s.py": "import tensorflow as tf"}, True),
        ({"s.py": "import os\ndef f():\n    from tensorflow.keras import layers"}, True),
        ({"s.py": "import worker"}, True),
        ({"s.py": "import keras"}, True),
        ({"s.py": "import os"}, False),
        ({"s.py": "import os", "other.py": "import tensorflow"}, False),
        ({"s.py": "import model", "model.py": "import tensorflow"}, True),
        ({"s.py": "import model", "model.py": "import layers", "layers.py": "import tensorflow"}, True),
        ({"s.py": "import package", "package/__init__.py": "", "package/part.py": "import tensorflow"}, True),
        ({"s.py": "import a", "a.py": "import b", "b.py": "import a"}, False),
        ({"s.py": "print('tensorflow')"}, False),
        ({"s.py": "not python ("}, False),
    ],
)
def test_a_program_is_followed_to_tensorflow(tmp_path: Path, files: dict[str, str], expected: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert look.needs_template(TENSORFLOW, [Program("script", "s.py")], str(tmp_path)) is expected


def test_a_module_is_followed_through_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("from . import model")
    (package / "model.py").write_text("import tensorflow")
    assert look.needs_template(TENSORFLOW, [Program("module", "package.train")], str(tmp_path))


def test_who_asks_for_a_preload_gets_it(tmp_path: Path) -> None:
    assert look.needs_template(TemplateOrder(("json",), 1, always=True), [Program("script", "missing.py")], str(tmp_path))
    assert look.needs_template(TENSORFLOW, [Program("serve")], str(tmp_path))
    assert look.needs_template(TENSORFLOW, [Program("command", "ls"), Program("data_service")], str(tmp_path))
    assert not look.needs_template(TENSORFLOW, [Program("command", "tensorflow")], str(tmp_path))


@pytest.mark.parametrize("name", ["s.py", "model.py"])
def test_a_pipe_is_not_read(tmp_path: Path, name: str) -> None:
    """Nothing may ever be written into it, and the agent has one thread."""
    (tmp_path / "s.py").write_text("import model")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_text, args=("import tensorflow",))
    writer.start()
    try:
        assert not look.needs_template(TENSORFLOW, [Program("script", "s.py")], str(tmp_path))
    finally:
        reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)  # lets it go
        writer.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["s.py", "model.py"])
def test_a_file_without_end_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(look, "MAX_CHECKED", 100)
    (tmp_path / "s.py").write_text("import model")
    (tmp_path / name).write_text(f"import tensorflow{' ' * 100}")
    assert not look.needs_template(TENSORFLOW, [Program("script", "s.py")], str(tmp_path))


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
