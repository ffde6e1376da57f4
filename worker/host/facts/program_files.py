"""The files of a task's program on this host: where they are, and the syntax of those that are Python."""

from __future__ import annotations

import ast
import glob
import os
import re
import stat
import zipimport
from collections.abc import Iterable, Iterator, Mapping

from ...protocol.messages import Program
from ...settings.keras_settings import LEGACY
from ...values import notebook_cells
from .import_path import python_path

MAX_CHECKED = 16 * 1024 * 1024
"""A script of this length (bytes) or more is run without checks."""
_MOST_FILES = 200
_TELLING = {"epochs", "steps_per_epoch", "validation_data", "validation_steps", "callbacks", "batch_size"}
"""Arguments of Keras's `fit` that the `fit` of other libraries does not have."""
_ENDING = re.compile(r"\b(?:return|raise|exit|_exit|quit|abort)\b")


class Source:
    def __init__(self, path: str, tree: ast.Module, text: bytes = b"", left_out: tuple[str, ...] = ()) -> None:
        """`path`: for messages. `left_out`: see `notebook_cells.Cell`."""
        self.path, self.tree, self.text, self.left_out = path, tree, text, left_out
        nodes = list(ast.walk(tree))
        self.imports = {name for node in nodes for name in imported(node)}
        """The top-level modules that the file imports."""
        self.imports_neighbours = any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
        self.uses_keras = not self.imports.isdisjoint({"tensorflow", "keras"})
        """Whether the file may use Keras at all."""
        self.sets_keras = any(isinstance(node, ast.Constant) and node.value == LEGACY for node in nodes)
        """Whether the file names the variable that chooses Keras 2."""
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]

    def method_calls(self) -> Iterator[tuple[ast.Call, str, str]]:
        """Each call of a method or of a function of a module, with the text before the last dot and the name behind it."""
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                yield call, ast.unparse(call.func.value), call.func.attr

    def certain_fit(self) -> int:
        """The line of a call of Keras's `fit` that a program with a strategy comes to, in no condition and no loop; 0: the syntax shows
        none."""
        functions = {node.name: node.body for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        certain = list(_certain(self.tree.body, functions))
        has_scope = any(isinstance(node, ast.With) and ".scope()" in ast.unparse(node.items[0].context_expr) for node in certain)
        return next((node.lineno for node in certain if has_scope and _is_fit(getattr(node, "value", None))), 0)


def _certain(body: list[ast.stmt], functions: dict[str, list[ast.stmt]]) -> Iterator[ast.stmt]:
    """The statements in no condition and no loop, up to the first that may end the program. A function is followed at its first call.

    A ``with`` may suppress an exception: only scopes and those of TensorFlow are followed.
    """
    for node in body:
        called = node.value.func if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in functions:
            yield from _certain(functions.pop(called.id), functions)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from _certain(node.body, functions)
        elif isinstance(node, ast.With):
            entered = [ast.unparse(item.context_expr) for item in node.items]
            if not all(text.endswith(".scope()") or text.startswith("tf.") for text in entered):
                return
            yield node
            yield from _certain(node.body, functions)
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node
            if _ENDING.search(ast.unparse(node)):
                return


def _is_fit(call: object) -> bool:
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fit"
    return is_method and not _TELLING.isdisjoint(word.arg for word in call.keywords)  # type: ignore[attr-defined]


def imported(node: ast.AST) -> list[str]:
    """Return the top-level modules that a statement imports; none if it is no import."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) and not node.level else []


def read_sources(programs: Iterable[Program], cwd: str, env: Mapping[str, str]) -> list[Source]:
    """The readable files of these programs: the first file of each, and the files next to it that are imported. `env`: of the tasks."""
    found: list[Source] = []
    seen: set[str] = set()
    for program in programs:
        if program.kind not in ("script", "module"):
            continue
        first, root = first_file(program, cwd, env)
        waiting = [first]
        while waiting and len(seen) < _MOST_FILES:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            try:
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode) or status.st_size >= MAX_CHECKED:  # see `program_checks._check_script`
                    continue
                with open(path, "rb") as file:
                    text = file.read()
                sources = [
                    Source(f"{os.path.relpath(path, cwd)} {part.name}".rstrip(), ast.parse(part.source), part.source, part.left_out)
                    for part in notebook_cells.parts(path, text)
                ]
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            found += sources
            is_package = any(source.imports_neighbours for source in sources)
            places = [os.path.join(glob.escape(os.path.dirname(path)), "*.py")] if is_package else []
            for name in set().union(*(source.imports for source in sources)):
                places += (os.path.join(glob.escape(root), f"{name}.py"), os.path.join(glob.escape(root), name, "*.py"))
            for place in places:
                waiting += glob.iglob(place)
    return found


def first_file(program: Program, cwd: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The first file of a program, and the directory of the program's own modules."""
    root = directory_of(program, cwd)
    if program.kind == "script":
        path = os.path.join(cwd, program.target)
        return (os.path.join(path, "__main__.py") if path == root else path), root
    name = os.path.join(*program.target.split("."))
    roots = [root, *(os.path.join(cwd, entry) for entry in python_path(env))]
    places = [(os.path.join(root, name + ending), root) for root in roots for ending in ("/__main__.py", ".py")]
    return next((place for place in places if os.path.isfile(place[0])), places[0])


def directory_of(program: Program, cwd: str) -> str:
    """The program's `sys.path[0]`: the directory or the zip file of its own modules."""
    if program.kind != "script":
        return cwd
    path = os.path.join(cwd, program.target)
    if os.path.isdir(path) or _is_zip_file(path):
        return path
    return os.path.dirname(os.path.realpath(path))


def directory_of_first(programs: Iterable[Program], cwd: str) -> str:
    """`directory_of` the first script or module: where a template finds modules that are nowhere else."""
    return directory_of(next((program for program in programs if program.kind in ("script", "module")), Program("serve")), cwd)


def _is_zip_file(path: str) -> bool:
    try:
        zipimport.zipimporter(path)
    except ImportError:
        return False
    return True
