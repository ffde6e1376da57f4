"""What is said of a program before it starts, from its syntax alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.host.facts import program_files, program_notes
from worker.host.facts.program_files import Source
from worker.protocol.messages import Program

OWN = "s.py seems to make a cluster of its own in one process ({}): then start it with --strategy none"
SERVERS = (
    "s.py:2 is for parameter servers (ParameterServerStrategy), and this run has none; its tasks would wait without end: --ps 1 (or more)"
)
EQUAL = "s.py:2 makes MultiWorkerMirroredStrategy, and this run has parameter servers: leave out --ps (ps: in orch.yaml), or make "
EQUAL += "ParameterServerStrategy in the script"
PS = "import tensorflow as tf\nstrategy = tf.distribute.experimental.ParameterServerStrategy(resolver)\n"
WORKERS = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"


def sources(directory: Path, **files: str) -> list[Source]:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    programs = [Program("script", "s.py"), Program("command", "sh"), Program("module", "no_such")]
    return program_files.read_sources(programs, str(directory), {})


@pytest.mark.parametrize(
    ("text", "has_servers", "note"),
    [
        ("import portpicker\nport = portpicker.pick_unused_port()\n", False, OWN.format("portpicker")),
        ("def create_in_process_cluster(n): ...\nr = create_in_process_cluster(3)\n", True, OWN.format("create_in_process_cluster")),
        ("import multi_process_runner\nmulti_process_runner.run(print)\n", False, OWN.format("multi_process_runner")),
        # what the program only has, and never calls
        ("import os\nimport portpicker\n", False, ""),
        ("def create_in_process_cluster(workers, ps): ...\n", False, ""),
        ("import helpers\n", False, ""),
        # orch's cluster is read
        ("import os, portpicker\nif 'TF_CONFIG' not in os.environ:\n    portpicker.pick_unused_port()\n", False, ""),
        (PS, False, SERVERS),
        (PS, True, ""),
        (WORKERS, True, EQUAL),
        (WORKERS, False, ""),
        (f"{PS}if not ps:\n    {WORKERS.splitlines()[1]}\n", False, ""),
        (f"{PS}if not ps:\n    {WORKERS.splitlines()[1]}\n", True, ""),
        (f"{WORKERS}tf.distribute.Server(cluster).join()\n", True, ""),
        (f"{WORKERS}import worker\n", True, ""),
    ],
)
def test_a_program_for_another_cluster_is_noted(tmp_path: Path, text: str, has_servers: bool, note: str) -> None:
    read = sources(tmp_path, s=text, helpers="import portpicker\nportpicker.pick_unused_port()\n")
    assert program_notes.find_notes(read, has_servers) == [note] * bool(note)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nprint(1)\nimport no_such_module.part\n", 3),
        ("with open(__file__):\n    pass\nimport helpers\nfrom no_such_module import n\n", 4),
        # at the beginning: it fails at once
        ("'A text.'\nimport os\nX = 1\nimport no_such_module\n", 0),
        # it may be optional, or stand where nobody can see it
        ("print(1)\ntry:\n    import no_such_module\nexcept ImportError:\n    pass\n", 0),
        ("print(1)\nif x:\n    import no_such_module\n", 0),
        ("print(1)\nwith contextlib.suppress(ImportError):\n    import no_such_module\n", 0),
        ("print(1)\nif x:\n    sys.exit()\nimport no_such_module\n", 0),
        ("print(1)\nos.system('pip install no_such_module')\nimport no_such_module\n", 0),
        ("print(1)\nsys.modules['no_such_module'] = keras\nimport no_such_module\n", 0),
        ("print(1)\ndef plot():\n    import no_such_module\n", 0),
        ("import sys\nsys.path.append('lib')\nimport no_such_module\n", 0),
        ("print(1)\nimport json, helpers, numpy, worker\n", 0),
    ],
)
def test_a_module_that_is_imported_late_and_is_missing_is_noted(tmp_path: Path, text: str, line: int) -> None:
    found = program_notes.find_missing(sources(tmp_path, s=text, helpers=""), str(tmp_path), [{}])
    how = f"install it with {sys.executable} -m pip, or leave the import out"
    assert found == ([f"s.py:{line}: the module no_such_module is not installed, so the run would fail there: {how}"] if line else [])


MADE = "import keras\nmodel = build()\nmodel.compile('sgd')\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            MADE + "model.save('out', save_format='tf')",
            "s.py:4: save() of Keras 3 fails for 'out': end the name with .keras or .h5; for a SavedModel: model.export(path)",
        ),
        (MADE + "model.save_weights('w.h5')", "save_weights() of Keras 3 fails for 'w.h5': end the name with .weights.h5"),
        (MADE + "model.save('a.keras')\nmodel.save('b.h5', save_format='h5')\nmodel.save_weights('w.weights.h5')", ""),
        (MADE + "model.save()\nmodel.save(path)\nmodel.save(f'{a}{b}')\nmodel.export('out')\nimage.save('out')", ""),
        ("import torch\nmodel.fit(1)\nmodel.save('out')", ""),
    ],
)
def test_a_name_that_keras_3_does_not_save_to_is_noted(tmp_path: Path, text: str, said: str) -> None:
    (source,) = sources(tmp_path, s=text)
    found = program_notes.find_saves(source)
    assert said in found
    assert bool(found) is bool(said)


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
