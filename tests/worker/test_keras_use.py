"""Which Keras a program needs, seen before it runs."""

from __future__ import annotations

import ast
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch
from worker.host import keras_use


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\ntf.keras.optimizers.legacy.Adam()", (2, "tf.keras.optimizers.legacy")),
        ("from keras.optimizers import legacy", (1, "tf.keras.optimizers.legacy")),
        ("import tensorflow as tf\n\ntf.keras.callbacks.experimental.BackupAndRestore('b')", (3, "tf.keras.callbacks.experimental")),
        ("import keras\nmodel.fit_generator(g)", (2, "fit_generator()")),
        ("import keras\nkeras.optimizers.Adam()", None),
        ("import other\nother.optimizers.legacy", None),
    ],
)
def test_names_of_keras_2_are_found(source: str, expected: tuple[int, str] | None) -> None:
    found = list(keras_use.find_keras_2([("train.py", ast.parse(source))]))
    assert found == ([("train.py", *expected)] if expected else [])


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
    said = "script.py:3: only Keras 2 has tf.keras.optimizers.legacy; --keras legacy runs with Keras 2 (tf-keras)"
    assert said in orch("up", "script.py", "--strategy", "none", check=0).err
