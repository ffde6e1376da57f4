"""Which Keras a program needs, seen before it runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
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


@pytest.mark.tensorflow
@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is not None, reason="tf-keras is installed here")
@pytest.mark.parametrize("how", [["--keras", "legacy"], ["--env", "TF_USE_LEGACY_KERAS=1"]])
def test_a_run_that_wants_keras_2_needs_tf_keras(orch: Orch, script: Callable[..., Path], how: list[str]) -> None:
    script("import tensorflow")
    done = orch("up", "script.py", *how, check=2)
    assert f"tf-keras is not installed for {sys.executable}: {sys.executable} -m pip install --no-deps 'tf-keras~=" in done.err


@pytest.mark.tensorflow
def test_a_script_that_needs_keras_2_is_named_before_the_start(orch: Orch, script: Callable[..., Path]) -> None:
    script("import tensorflow as tf\nif False:\n    tf.keras.optimizers.legacy.Adam()\n")
    said = "script.py:3: only Keras 2 has tf.keras.optimizers.legacy; --keras legacy runs with Keras 2 (tf-keras)"
    assert said in orch("up", "script.py", "--strategy", "none", check=0).err
