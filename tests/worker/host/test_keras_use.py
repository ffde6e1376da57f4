"""Which Keras a program needs, seen before it runs."""

from __future__ import annotations

import ast
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch
from worker.host.program import keras_use
from worker.host.program.keras_source import Source


def first_use(source: str) -> str:
    """Where Keras 3 lacks what, and which remedy is named."""
    found = keras_use.find_keras_2(Source("train.py", ast.parse(source)), lambda itself: "ITSELF" if itself else "LEGACY")
    return found and f"{': '.join(found.split(': ')[:2])} ({found.rpartition('; ')[2]})"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\ntf.keras.optimizers.legacy.Adam()", "train.py:2: Keras 3 has no tf.keras.optimizers.legacy (LEGACY)"),
        ("from keras.optimizers import legacy", "train.py:1: Keras 3 has no keras.optimizers.legacy (ITSELF)"),
        (
            "from tensorflow import keras as k\n\nk.callbacks.experimental.X()",
            "train.py:3: Keras 3 has no tf.keras.callbacks.experimental (LEGACY)",
        ),
        ("import keras\nmodel.fit_generator(g)", "train.py:2: Keras 3 has no fit_generator (ITSELF)"),
        (
            "import tensorflow as tf\ntf.keras.optimizers.Adam(lr=1)",
            "train.py:2: Keras 3 has no tf.keras.optimizers.Adam(lr=) (LEGACY)",
        ),
        (
            "import tensorflow as tf\nm = tf.keras.metrics.Mean()\ndef f():\n    m.reset_states()",
            "train.py:4: Keras 3 has no reset_states of tf.keras.metrics.Mean (LEGACY)",
        ),
        ("import keras\nkeras.optimizers.Adam()", ""),
        ("import other\nother.optimizers.legacy", ""),
        ("import keras, other\nm = other.Metric()\nm.reset_states()", ""),
        ("import keras\ndef f(m):\n  m.reset_states()\nm = keras.metrics.Mean()", ""),
        ("import keras\nimport tf_keras\ntf_keras.optimizers.legacy.SGD()", ""),
        ("import keras, torch\nnet.save('x')\ntorch.save(net, 'x')", ""),
    ],
)
def test_what_only_keras_2_has_is_found(source: str, expected: str) -> None:
    assert first_use(source) == expected


SCOPE = "import tensorflow as tf\nstrategy = tf.distribute.ParameterServerStrategy(r)\n"
BUILT = f"{SCOPE}with strategy.scope():\n    model = tf.keras.Sequential()\n"


@pytest.mark.parametrize(
    ("source", "line", "is_certain"),
    [
        (f"{BUILT}model.fit(d)", 5, True),
        (f"{BUILT}    model.evaluate(d)", 5, True),
        (f"{SCOPE}def f():\n with strategy.scope(): m = tf.keras.Model(i, o)\n return m.fit(d)\nif __name__ == '__main__':\n f()", 5, True),
        (f"{BUILT}with tf.device('CPU'):\n    h = model.fit(d)", 6, True),
        (f"{SCOPE}with tf.name_scope('a'), strategy.scope():\n    model = tf.keras.Sequential()\nmodel.fit(d)", 5, True),
        (f"{BUILT}with contextlib.suppress(Exception):\n    model.fit(d)", 6, False),
        (f"{BUILT}with strategy.scope(), contextlib.suppress(Exception):\n    model.fit(d)", 6, False),
        (f"{BUILT}with contextlib.suppress(Exception):\n    sys.exit()\nmodel.fit(d)", 7, False),
        (f"{BUILT}if __name__ == '__main__':\n    model.fit(d)", 6, True),
        (f"{BUILT}if x:\n    model.fit(d)", 6, False),
        (f"{BUILT}if x:\n    sys.exit()\nmodel.fit(d)", 7, False),
        (f"{BUILT}def train():\n    model.fit(d)", 6, False),
        (f"{BUILT}model = other()\nmodel.fit(d, epochs=2)", 6, False),
        ("import tensorflow as tf\nmodel = tf.keras.Sequential()\nmodel.fit(d)", 3, False),
        ("import tensorflow as tf\nget_model().fit(d, epochs=2)", 2, False),
        (f"{SCOPE}from sklearn.svm import SVC\nmodel = SVC()\nmodel.fit(d, e)\nmodel.predict(d)", 0, False),
        ("import other\nmodel.fit(d, epochs=2)", 0, False),
        (f"from keras import Sequential\n{SCOPE}with strategy.scope():\n    model = Sequential()\nmodel.fit(d)", 6, True),
        (f"from keras import Sequential\ndef Sequential(): pass\n{SCOPE}with strategy.scope():\n    m = Sequential()\nm.fit(d)", 0, False),
        (f"from keras import Model\nclass Model: pass\n{SCOPE}with strategy.scope():\n    m = Model()\nm.fit(d)", 0, False),
        (f"{BUILT}try: x()\nexcept OSError as model: pass\nmodel.fit(d)", 0, False),
    ],
)
def test_fit_under_parameter_servers_is_refused_where_it_is_certain(source: str, line: int, is_certain: bool) -> None:
    said, found = keras_use.find_loop(Source("a.py", ast.parse(source)), "ParameterServerStrategy", lambda itself: "REMEDY")
    assert (said.partition(": ")[0], found) == (f"a.py:{line}" if line else "", is_certain)


@pytest.fixture
def python_without_keras_2(tmp_path: Path) -> Path:
    """An interpreter with all packages of this one but tf-keras."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for path in map(Path, {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        for package in path.iterdir():
            if not package.name.startswith("tf_keras") and not (packages / package.name).exists():
                (packages / package.name).symlink_to(package)
    return tmp_path / "venv/bin/python"


@pytest.mark.tensorflow
@pytest.mark.parametrize("how", [["--keras", "legacy"], ["--env", "TF_USE_LEGACY_KERAS=1"]])
def test_a_run_that_wants_keras_2_needs_tf_keras(
    orch: Orch, script: Callable[..., Path], python_without_keras_2: Path, how: list[str]
) -> None:
    script("import tensorflow")
    python = python_without_keras_2
    done = orch("up", "script.py", "--python", python, *how, check=2)
    assert f"tf-keras is not installed for {python}: {python} -m pip install --no-deps 'tf-keras~=" in done.err


@pytest.mark.tensorflow
def test_a_script_that_needs_keras_2_is_named_before_the_start(orch: Orch, script: Callable[..., Path]) -> None:
    script("import tensorflow as tf\nif False:\n    tf.keras.optimizers.legacy.Adam()\n")
    said = orch("up", "script.py", "--strategy", "none", check=0).err
    assert "script.py:3: Keras 3 has no tf.keras.optimizers.legacy: Keras 3 has the same optimizers without `legacy`" in said
    assert "; --keras legacy runs with Keras 2 (tf-keras)\n" in said


@pytest.mark.tensorflow
def test_fit_of_keras_3_with_parameter_servers_is_refused(orch: Orch, script: Callable[..., Path], python_without_keras_2: Path) -> None:
    script(f"{BUILT}model.fit(d)")
    problem = "script.py:5: fit() of Keras 3 cannot work under ParameterServerStrategy: --keras legacy runs with Keras 2 (tf-keras)"
    assert f"{problem}; or write" in orch("up", "script.py", "--ps", "1", check=2).err
    install = f", after {python_without_keras_2} -m pip install --no-deps 'tf-keras~="
    assert f"{problem}{install}" in orch("up", "script.py", "--ps", "1", "--python", python_without_keras_2, check=2).err


@pytest.mark.tensorflow
def test_a_script_that_takes_keras_2_by_itself_gets_all_of_it(orch: Orch, script: Callable[..., Path]) -> None:
    """Forked from what had imported TensorFlow with Keras 3, it got `tf.keras` from the one and `tensorflow.keras` from the other."""
    script("""
        import os
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow as tf
        from tensorflow.keras import layers
        print("modules", tf.keras.layers.Dense.__module__, layers.Dense.__module__)
    """)
    done = orch("up", "script.py", "--strategy", "none", check=0)
    assert "modules tf_keras.src.layers.core.dense tf_keras.src.layers.core.dense\n" in done.out
    assert "script.py sets TF_USE_LEGACY_KERAS, so each task" in done.err
