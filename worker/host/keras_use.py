"""Which Keras a program needs, seen before it runs: whether Keras 2 is there if it is asked for, and what only Keras 2 has.

Source is read by syntax and never run, so that only what is sure is said: names of Keras 2 that Keras 3 does not have.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

from . import look
from .import_path import import_path

LEGACY = "TF_USE_LEGACY_KERAS"
_GONE = {
    "optimizers.legacy": "tf.keras.optimizers.legacy",
    "callbacks.experimental": "tf.keras.callbacks.experimental",
    "preprocessing.text": "tf.keras.preprocessing.text",
    "wrappers.scikit_learn": "tf.keras.wrappers.scikit_learn",
    "backend.set_session": "tf.keras.backend.set_session",
    "estimator.model_to_estimator": "tf.keras.estimator",
}
"""The ends of names that only Keras 2 has, and the names as users know them."""
_METHODS = ("fit_generator", "evaluate_generator", "predict_generator", "predict_classes", "predict_proba")


def is_legacy(env: Mapping[str, str]) -> bool:
    """Whether a task with this environment takes Keras 2 for Keras (tensorflow/python/util/lazy_loader.py, `_KerasLazyLoader`)."""
    return env.get(LEGACY, "").lower() in ("1", "true")


def find_problem(env: Mapping[str, str], cwd: str) -> str | None:
    """Why a task with this environment cannot have the Keras 2 that it asks for; None if it can, or asks for none."""
    if not is_legacy(env):
        return None
    path = import_path(env, cwd)
    try:
        if path.find("tf_keras", cwd) is not None or not path.is_all:
            return None
    except Exception:  # whatever an import hook has met; the task will say it
        return None
    version = look.find_tensorflow([env], cwd) or ""
    minor = ".".join(version.split(".")[:2])
    wanted = f"'tf-keras~={minor}.0'" if minor.replace(".", "").isdigit() else "tf-keras, of TensorFlow's minor version"
    return (
        f"{LEGACY}={env[LEGACY]} asks for Keras 2 (--keras legacy), and tf-keras is not installed for {sys.executable}: "
        f"{sys.executable} -m pip install --no-deps {wanted}"
    )


def find_keras_2(sources: Iterable[tuple[str, ast.AST]]) -> Iterator[tuple[str, int, str]]:
    """What only Keras 2 has, the first of it in each of these files: the path, the line and the name."""
    for path, tree in sources:
        found = sorted(_uses(tree)) if _imports_keras(tree) else []
        if found:
            yield path, *found[0]


def _imports_keras(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.partition(".")[0] in ("keras", "tensorflow") for name in names):
            return True
    return False


def _uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = _dotted(node)
            for end, shown in _GONE.items():
                if name.endswith(f".{end}"):
                    yield node.lineno, shown
            if node.attr in _METHODS:
                yield node.lineno, f"{node.attr}()"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for end, shown in _GONE.items():
                if any(f"{node.module}.{alias.name}".endswith(end) and "keras" in node.module for alias in node.names):
                    yield node.lineno, shown


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
