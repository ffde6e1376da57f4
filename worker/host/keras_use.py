"""Which Keras a program needs, seen before it runs: whether Keras 2 is there if it is asked for, and what only Keras 2 has.

Source is read by syntax and never run, so that only what is sure is said: names of Keras 2 that Keras 3 does not have.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

from ..keras_settings import LEGACY, install_keras_2, is_legacy
from . import look
from .import_path import import_path

_GONE = {
    "optimizers.legacy": "tf.keras.optimizers.legacy",
    "callbacks.experimental": "tf.keras.callbacks.experimental",
    "preprocessing.text": "tf.keras.preprocessing.text",
    "wrappers.scikit_learn": "tf.keras.wrappers.scikit_learn",
    "backend.set_session": "tf.keras.backend.set_session",
    "estimator.model_to_estimator": "tf.keras.estimator",
}
"""The ends of names that only Keras 2 has, and the names as users know them."""
_METHODS = ("fit_generator", "evaluate_generator", "predict_generator")


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
    install = install_keras_2(sys.executable, look.find_tensorflow([env], cwd) or "")
    return f"Keras 2 is asked for ({LEGACY}={env[LEGACY]}), and tf-keras is not installed for {sys.executable}: {install}"


def find_keras_2(sources: Iterable[tuple[str, ast.AST]]) -> Iterator[tuple[str, int, str]]:
    """What only Keras 2 has, the first of it in each of these files: the path, the line and the name."""
    for path, tree in sources:
        found = sorted(_uses(tree)) if imports_keras(tree) else []
        if found:
            yield path, *found[0]


def imports_keras(tree: ast.AST) -> bool:
    """Whether a file imports Keras, or TensorFlow, which brings it."""
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
