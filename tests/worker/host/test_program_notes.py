"""What is said of a program before it starts, from its syntax alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import golden
from worker.host.facts import program_files, program_notes
from worker.host.facts.program_files import Source
from worker.protocol.messages import Program


def sources(directory: Path, **files: str) -> list[Source]:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    programs = [Program("script", "s.py"), Program("command", "sh"), Program("module", "no_such")]
    return program_files.read_sources(programs, str(directory), {})


@golden.cases("programs.txt")
def test_what_is_said_of_a_program(tmp_path: Path, case: golden.Case) -> None:
    """It has a neighbour that makes a cluster of its own."""
    read = sources(tmp_path, s=f"{case.given}\n", helpers="import portpicker\nportpicker.pick_unused_port()\n")
    (source,) = (source for source in read if source.path == "s.py")
    said = [f"without servers: {note}" for note in program_notes.find_notes(read, False)]
    said += [f"with servers: {note}" for note in program_notes.find_notes(read, True)]
    said += program_notes.find_missing([source], str(tmp_path), [{}])
    said += filter(None, [program_notes.find_saves(source)])
    line = source.certain_fit()
    case.check("\n".join([*said, *([f"fit of Keras, certainly, in line {line}"] if line else [])]).replace(sys.executable, "PYTHON"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nimport tensorflow as tf\nprint(tf)\n", 2),
        ("'''A program.'''\nfrom tensorflow import keras\n", 2),
        ("from . import x\ndef late():\n    pass\n\n\nimport tensorflow.keras\n", 6),
        # what may do without, or may bring TensorFlow by itself
        ("try:\n    import tensorflow\nexcept ImportError:\n    pass\n", 0),
        ("import subprocess\nsubprocess.run(['pip', 'install', 'tensorflow'])\nimport tensorflow\n", 0),
        ("import sys\nsys.path.append('/opt')\nimport tensorflow\n", 0),
        ("import sys, fake\nsys.modules['tensorflow'] = fake\nimport tensorflow\n", 0),
        ("def work():\n    import tensorflow\n", 0),
        ("import tensorflow_datasets\n", 0),
    ],
)
def test_a_program_that_begins_with_a_missing_tensorflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, line: int) -> None:
    def find(here: str) -> list[str]:
        monkeypatch.setattr(program_notes, "find_module", lambda *_: here)
        return program_notes.find_no_tensorflow(sources(tmp_path, s=text), str(tmp_path), [{}])

    assert find("/lib/tensorflow/__init__.py") == []
    monkeypatch.setattr(program_notes, "NEWEST_PYTHON", sys.version_info[:2])
    how = f"{sys.executable} -m pip install tensorflow-cpu; or choose another Python with --python"
    assert find("") == ([f"{sys.executable} has no TensorFlow, which s.py:{line} imports: {how}"] if line else [])
    monkeypatch.setattr(program_notes, "NEWEST_PYTHON", (3, 9))
    assert all("there is no TensorFlow for Python 3." in note and "pip" not in note for note in find(""))
