"""What an agent sees in a program before it runs it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from worker.host.facts import program_checks, program_files
from worker.protocol.messages import Program, TemplateOrder

TENSORFLOW = TemplateOrder(("tensorflow",), 2)


def needs_template(template: TemplateOrder, programs: list[Program], directory: Path) -> bool:
    sources = program_files.read_sources(programs, str(directory), template.env)
    return program_checks.needs_template(template, programs, sources)


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
    assert needs_template(TENSORFLOW, [Program("script", "s.py")], tmp_path) is expected


def test_a_module_is_followed_through_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("from . import model")
    (package / "model.py").write_text("import tensorflow")
    assert needs_template(TENSORFLOW, [Program("module", "package.train")], tmp_path)


def test_a_module_is_followed_where_the_tasks_will_find_it(tmp_path: Path) -> None:
    (tmp_path / "src/package").mkdir(parents=True)
    (tmp_path / "src/package/__main__.py").write_text("import model")
    (tmp_path / "src/model.py").write_text("import tensorflow")
    template = TemplateOrder(("tensorflow",), 2, {"PYTHONPATH": "src"})
    assert needs_template(template, [Program("module", "package")], tmp_path)


def test_a_command_is_looked_for_on_the_path_that_its_task_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.execvpe` does in the task: the spec's PATH counts, and a relative part of it starts at the task's working directory."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/some-tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    def find(*envs: dict[str, str]) -> list[str]:
        return program_checks.find_problems([Program("command", "some-tool")], str(tmp_path), envs)

    for path in (str(tool.parent), f"/usr/bin:{tool.parent}", "bin"):
        assert find({"PATH": path}) == []
        assert find({}, {"PATH": path}) == []
    missing = "the command 'some-tool' is not on PATH"
    own = os.environ["PATH"]
    assert find({"PATH": "/usr/bin:/bin"}) == [f"{missing}: /usr/bin:/bin"]
    assert find({}) == [f"{missing}: {own}"]
    assert find({}, {"PATH": "/bin"}) == [f"{missing}: {own} or /bin"]
    assert find({"PATH": ""}) == [f"{missing}: "]
    monkeypatch.setenv("PATH", str(tool.parent))
    assert find({}) == []
    assert find({"PATH": "/bin"}) == [f"{missing}: /bin"], "here it would be found, and not by the task"
    (tmp_path / "some-tool").touch()
    assert find({"PATH": "/bin"}) == [f"{missing}, and a file of this name lies here: write ./some-tool"]
    monkeypatch.delenv("PATH")
    assert program_checks.find_problems([Program("command", "sh")], str(tmp_path)) == [], "as os.defpath"


def test_a_module_is_missing_only_if_no_task_could_find_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/tool.py").touch()
    module = [Program("module", "tool")]
    assert program_checks.find_problems(module, str(tmp_path), [{"PYTHONPATH": "src"}]) == []
    assert program_checks.find_problems(module, str(tmp_path), [{}, {"PYTHONPATH": "src"}]) == []
    assert "no module named 'tool'" in program_checks.find_problems(module, str(tmp_path), [{}])[0]
    assert program_checks.find_problems(module, str(tmp_path), [{"PYTHONHOME": "/opt/python"}]) == []


def test_an_interpreter_that_fails_is_left_to_the_task(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(1)\n")
    assert program_checks.find_problems([Program("module", "tool")], str(tmp_path), [{"PYTHONPATH": str(tmp_path)}]) == []


def test_who_asks_for_a_preload_gets_it(tmp_path: Path) -> None:
    assert needs_template(TemplateOrder(("json",), 1, always=True), [Program("script", "missing.py")], tmp_path)
    assert needs_template(TENSORFLOW, [Program("serve")], tmp_path)
    assert needs_template(TENSORFLOW, [Program("command", "ls"), Program("data_service")], tmp_path)
    assert not needs_template(TENSORFLOW, [Program("command", "tensorflow")], tmp_path)


@pytest.mark.parametrize("name", ["s.py", "model.py"])
def test_a_pipe_is_not_read(tmp_path: Path, name: str) -> None:
    """Nothing may ever be written into it, and the agent has one thread."""
    (tmp_path / "s.py").write_text("import model")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_text, args=("import tensorflow",))
    writer.start()
    try:
        assert not needs_template(TENSORFLOW, [Program("script", "s.py")], tmp_path)
    finally:
        reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)  # lets it go
        writer.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["s.py", "model.py"])
def test_a_file_without_end_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(program_files, "MAX_CHECKED", 100)
    (tmp_path / "s.py").write_text("import model")
    (tmp_path / name).write_text(f"import tensorflow{' ' * 100}")
    assert not needs_template(TENSORFLOW, [Program("script", "s.py")], tmp_path)


def test_a_directory_for_checkpoints_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    find = program_checks.find_no_room_for_saves
    for fits in ("", ".", "new/one", str(tmp_path / "new")):
        assert find(fits, str(tmp_path)) == [], fits
    for name in ("file", "file/under/it", "gone/x"):
        (told,) = find(name, str(tmp_path))
        first = str(tmp_path / name.partition("/")[0])
        assert told.splitlines()[0] == f"checkpoints.dir: {name!r} cannot be used: {first!r} is not a directory"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (told,) = find("new/one", str(tmp_path))
    assert told.startswith(f"checkpoints.dir: 'new/one' cannot be used: you may not write in {str(tmp_path)!r}\nfix: ")
