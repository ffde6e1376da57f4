"""What is said of a program before it starts, from its syntax alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.host.facts import program_files, program_notes
from worker.host.facts.keras_source import Source
from worker.protocol.messages import Program

OWN = "seems to make a cluster of its own in one process ({}): then start it with --strategy none"
SERVERS = "is for parameter servers (ParameterServerStrategy), and this run has none; its tasks would wait without end: --ps 1 (or more)"
PS = "import tensorflow as tf\nstrategy = tf.distribute.experimental.ParameterServerStrategy(resolver)\n"
WORKERS = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"


def sources(directory: Path, **files: str) -> list[Source]:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    programs = [Program("script", "s.py"), Program("command", "sh"), Program("module", "no_such")]
    return program_files.read_sources(programs, str(directory), {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import portpicker\nport = portpicker.pick_unused_port()\n", "portpicker"),
        ("def create_in_process_cluster(workers):\n    ...\nresolver = create_in_process_cluster(3)\n", "create_in_process_cluster"),
        (
            "from x import create_in_process_cluster\ndef main():\n    create_in_process_cluster(3)\nif __name__:\n    main()\n",
            "create_in_process_cluster",
        ),
        ("from tensorflow.python.distribute import multi_process_runner\nmulti_process_runner.run(print)\n", "multi_process_runner"),
        # what the program only has, and never calls
        ("import os\nimport portpicker\n", ""),
        ("def create_in_process_cluster(workers, ps):\n    ...\n", ""),
        ("def local():\n    create_in_process_cluster(3)\n", ""),
        ("import helpers\n", ""),
        # orch's cluster is read
        ("import os, portpicker\nif 'TF_CONFIG' not in os.environ:\n    portpicker.pick_unused_port()\n", ""),
        ("import os\n# import portpicker\n", ""),
        ("import tensorflow as tf\n", ""),
    ],
)
def test_a_program_that_makes_a_cluster_of_its_own_is_noted(tmp_path: Path, text: str, word: str) -> None:
    found = program_notes.find_notes(sources(tmp_path, s=text, helpers="import portpicker\nportpicker.pick_unused_port()\n"))
    assert found == ([f"s.py {OWN.format(word)}"] if word else [])


def test_a_program_for_parameter_servers_in_a_run_without_them_is_noted(tmp_path: Path) -> None:
    assert program_notes.find_notes(sources(tmp_path, s=PS)) == [f"s.py:2 {SERVERS}"]
    assert program_notes.find_notes(sources(tmp_path, s=PS), "ParameterServerStrategy") == []
    assert program_notes.find_notes(sources(tmp_path, s=f"{PS}if not ps:\n    {WORKERS}")) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKERS, 2),
        (f"def main():\n    {WORKERS}main()\n", 3),
        ("with tf.distribute.MultiWorkerMirroredStrategy().scope(): pass\n", 0),
        (f"if train:\n    {WORKERS}", 0),
        (f"{WORKERS}tf.distribute.Server(cluster).join()\n", 0),
        (f"import worker\n{WORKERS}", 0),
        (f"{PS}if not ps:\n    {WORKERS}", 0),
    ],
)
def test_a_program_of_equal_workers_is_refused_with_parameter_servers(tmp_path: Path, text: str, line: int) -> None:
    made = f"s.py:{line} makes MultiWorkerMirroredStrategy, and this run has parameter servers: leave out --ps"
    found = program_notes.find_other_strategy(sources(tmp_path, s=f"import tensorflow as tf\n{text}"))
    assert [one.startswith(made) for one in found] == [True] * bool(line)


MAYBE = (
    "x = plot() if args.plot else []",
    "args.plot and plot()",
    "later = lambda: plot()",
    "x = [plot() for one in args.plots]",
    "try:\n    plot()\nexcept ImportError:\n    pass",
    "with suppress(ImportError):\n    plot()",
    "match args.plot:\n    case 'yes':\n        plot()",
    "def main():\n    if args.quick:\n        return\n    plot()\nmain()",
    "for name in names:\n    if name in known:\n        continue\n    plot()",
    "if args.check:\n    sys.exit()\nplot()",
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nprint(1)\nimport no_such_module.part\n", 3),
        ("def plot():\n    from no_such_module import x\nplot()\n", 2),
        ("class A:\n    def plot(self):\n        import no_such_module\ndef main():\n    a = A()\n    for b in a.plot(): ...\nmain()\n", 3),
        (
            "def main():\n    with f(): ...\ndef f():\n    import no_such_module\nif __name__ == '__main__':\n    main()\n",
            4,
        ),
        ("with open(__file__):\n    pass\nimport helpers\nimport no_such_module as n\n", 4),
        # at the beginning: it fails at once
        ("'A text.'\nimport os\nX = 1\nimport no_such_module\n", 0),
        # it may be optional, or stand where nobody can see it
        ("print(1)\ntry:\n    import no_such_module\nexcept ImportError:\n    pass\n", 0),
        ("print(1)\nif x:\n    import no_such_module\n", 0),
        ("print(1)\nwith contextlib.suppress(ImportError):\n    import no_such_module\n", 0),
        ("print(1)\nif x:\n    sys.exit()\nimport no_such_module\n", 0),
        ("print(1)\nos.system('pip install no_such_module')\nimport no_such_module\n", 0),
        ("print(1)\nsys.modules['no_such_module'] = keras\nimport no_such_module\n", 0),
        *((f"def plot():\n    import no_such_module\n    return []\n{maybe}\n", 0) for maybe in MAYBE),
        ("def plot():\n    if not args.plot:\n        return\n    import no_such_module\nplot()\n", 0),
        ("for i in range(9):\n    if i == 5:\n        break\nimport no_such_module\n", 4),
        ("def plot():\n    import no_such_module\n", 0),
        ("def plot():\n    import no_such_module\ndef unused():\n    plot()\nif args.plot:\n    plot()\n", 0),
        ("import sys\nsys.path.append('lib')\nimport no_such_module\n", 0),
        ("print(1)\nimport json, helpers, numpy\n", 0),
    ],
)
def test_a_module_that_is_imported_late_and_is_missing_is_noted(tmp_path: Path, text: str, line: int) -> None:
    found = program_notes.find_missing(sources(tmp_path, s=text, helpers=""), str(tmp_path), [{}])
    how = f"install it with {sys.executable} -m pip, or leave the import out"
    assert found == ([f"s.py:{line}: the module no_such_module is not installed, so the run would fail there: {how}"] if line else [])


def test_a_missing_module_in_another_file_counts_where_the_program_calls_the_function(tmp_path: Path) -> None:
    helpers = "def show():\n    import no_such_module\ndef hide():\n    import no_such_other\n"
    for program, number in (
        ("import helpers\nhelpers.show()\n", 1),
        ("from helpers import show\n", 0),
        ("from helpers import show\nshow()\n", 1),
    ):
        found = program_notes.find_missing(sources(tmp_path, s=program, helpers=helpers), str(tmp_path), [{}])
        assert [note.partition(" is not")[0] for note in found] == ["helpers.py:2: the module no_such_module"] * number


def test_keras_s_callback_for_tensorboard_is_noted_where_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_notes, "find_module", lambda name, env, place: "" if name == "tensorboard" else "found")
    fit = "model.fit(x, callbacks=[{}])\n"
    for text, line in (
        ("import tensorflow as tf\n" + fit.format("tf.keras.callbacks.TensorBoard('logs')"), 2),
        ("from keras.callbacks import TensorBoard\ncallback = TensorBoard('logs')\n", 1),
        ("import tensorflow as tf\nif args.logs:\n    " + fit.format("tf.keras.callbacks.TensorBoard('logs')"), 0),
        ("from keras.callbacks import TensorBoard\ncallbacks = [TensorBoard('logs')] if args.logs else []\n", 0),
        ("class TensorBoard: ...\n" + fit.format("TensorBoard()"), 0),
    ):
        found = program_notes.find_missing(sources(tmp_path, s=text), str(tmp_path), [{}])
        assert [note.partition(" is not")[0] for note in found] == [f"s.py:{line}: the module tensorboard"] * bool(line)


MODEL = "import os\nimport tensorflow as tf\nmodel = tf.keras.Sequential()\n"
MADE = "import keras\nmodel = build()\nmodel.compile('sgd')\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            MODEL + "model.save('out')",
            "s.py:4: save() of Keras 3 fails for 'out': end the name with .keras or .h5; for a SavedModel: model.export(path)",
        ),
        (MADE + "model.save('out', save_format='tf')", "s.py:4: save() of Keras 3 fails for 'out'"),
        (MODEL + "model.save(os.path.join(path, 'my_model'))", "fails for 'my_model'"),
        (MODEL + "path = 'models/' + name + '/1'\nmodel.save(path)", "s.py:5: save() of Keras 3 fails for '/1'"),
        (MODEL + "model.save_weights(f'{path}/w.h5')", "save_weights() of Keras 3 fails for '/w.h5': end the name with .weights.h5"),
        (MODEL + "model.save('a.keras')\nmodel.save('b.h5', save_format='h5')\nmodel.save_weights('w.weights.h5')", ""),
        (MODEL + "model.save(path)\nmodel.save(f'{a}{b}')\nmodel.save(where())", ""),
        (MODEL + "image.save('out')\nmodel.export('out')", ""),
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
        ("def late():\n    pass\n\n\nimport tensorflow.keras\n", 5),
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
